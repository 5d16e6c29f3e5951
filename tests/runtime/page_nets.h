// A test of PageNets whose ports are ours and whose engine is a NetAccount: net 0 lends, net 1 goes on with what it lent.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "runtime/net_account.h"
#include "runtime/page_net.h"
#include "tests/runtime/fake_port.h"
#include "tests/runtime/tiny_model.h"

namespace otr {

class PageNets : public testing::Test {
 protected:
  static constexpr int32_t kPages = 6;

  struct Host final : NetHost {
    PageNets* test = nullptr;
    int32_t worker = 0;
    void tell(const NetNews& news) override { test->take(worker, news); }
    void end_process(const Status& why) override { test->on_end_process_(worker, why); }
    void pass(ProtocolStep step) override { test->pass(step); }
  };

  explicit PageNets(size_t num_nets = 2, int32_t patience_ms = kPortPatienceMs)
      : patience_ms_(patience_ms),
        hosts_(num_nets),
        account_(static_cast<int32_t>(num_nets),
                 {.make_id =
                      [this] {
                        last_id_[0] = static_cast<std::byte>(static_cast<int>(last_id_[0]) + 1);
                        return Result<NetId>(last_id_);
                      }},
                 [this](int32_t worker, const NetOrder& order) { nets_[static_cast<size_t>(worker)]->follow(order); }) {}

  void SetUp() override {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      DeviceOptions o;
      o.num_threads = 1;
      o.target = {.path = model_.path(), .num_pages = kPages, .bucket = {.max_rows = 8, .max_logit_rows = 1}};
      devices_.push_back(std::move(Device::create(o).value()));
      hosts_[i].test = this, hosts_[i].worker = static_cast<int32_t>(i);
      nets_.push_back(std::make_unique<PageNet>(std::make_unique<FakePort>(&board_, patience_ms_), &devices_.back()->target(),
                                                &hosts_[i], patience_ms_));
    }
    contents_.resize(static_cast<size_t>(kPages * model_.layout().page_elements()));
    std::mt19937 random(3);
    for (Element& x : contents_) x = to_element(static_cast<float>(random() % 1000) / 100.0f);
    const std::vector<PageId> all = {0, 1, 2, 3, 4, 5};
    ASSERT_TRUE(target(0).write_pages(all, contents_.data()).ok());
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Host& host : hosts_) account_.ready(host.worker);
  }
  void TearDown() override {
    for (const auto& net : nets_) net->stop();
  }

  // What a net says to the engine.
  virtual void take(int32_t worker, const NetNews& news) {
    const std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_TRUE(account_.news(worker, news).ok());
  }
  virtual void pass(ProtocolStep) {}
  ModelRunner& target(size_t i) { return devices_[i]->target(); }
  // The first `num_nets`.
  void wait_until_up(uint64_t generation, int32_t num_nets = 2) {
    const auto joined = [generation](const auto& net) { return net->generation() == generation; };
    const auto is_up = [&] { return std::all_of(nets_.begin(), nets_.begin() + num_nets, joined); };
    for (int i = 0; i < 10'000 && !is_up(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(is_up());
    for (int i = 0; i < 10'000; ++i) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (account_.is_up()) return;
      std::this_thread::yield();
    }
  }
  std::shared_ptr<LentPages> lend(const std::vector<PageId>& pages) {
    return std::make_shared<LentPages>(target(0), &mailbox_, pages, static_cast<int32_t>(pages.size()) * kPageTokens,
                                       TickSpeed{});
  }
  std::shared_ptr<RemotePages> remote(uint64_t parcel, int32_t num_pages) {
    return std::make_shared<RemotePages>(nets_[1].get(),
                                         RemotePages(0, nets_[1]->generation(), parcel, num_pages * kPageTokens));
  }
  void watch(const std::shared_ptr<LentPages>& lent) {
    const std::lock_guard<std::mutex> lock(board_.mutex);
    board_.read = lent;
  }
  static bool comes_over(const LentPages& lent) {
    for (int i = 0; i < 10'000 && !lent.over(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return lent.over();
  }
  void leave(size_t i, uint64_t generation) {
    nets_[i]->follow({.kind = NetOrder::Kind::kLeave, .generation = generation, .pull = {}});
  }
  std::vector<Element> read(const std::vector<PageId>& pages) {
    std::vector<Element> found(pages.size() * static_cast<size_t>(model_.layout().page_elements()));
    EXPECT_TRUE(target(1).read_pages(pages, found.data()).ok());
    return found;
  }
  bool holds(PageId here, PageId there) {
    const size_t size = static_cast<size_t>(model_.layout().page_elements());
    return std::memcmp(read({here}).data(), contents_.data() + static_cast<size_t>(there) * size, size * sizeof(Element)) == 0;
  }

  const int32_t patience_ms_;
  const TinyModel model_;
  std::mutex mutex_;  // the engine's
  Switchboard board_;
  WorkerMailbox mailbox_;
  std::vector<Host> hosts_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<PageNet>> nets_;
  std::vector<Element> contents_;
  NetId last_id_ = {};
  NetAccount account_;
  std::function<void(int32_t worker, const Status& why)> on_end_process_ = [](int32_t, const Status& why) {
    ADD_FAILURE() << why.message();
  };
};

}  // namespace otr
