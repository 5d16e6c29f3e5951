#include "runtime/page_net.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace otr {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

PageNet::PageNet(std::unique_ptr<PagePort> port, ModelRunner* target, NetHost* host, int32_t patience_ms)
    : port_(std::move(port)), target_(target), host_(host), patience_ms_(patience_ms) {
  pull_.to.reserve(kMostPages);  // a tick fills it
  sent_.reserve(kMostPages);
  parcels_.reserve(kMostPages);
  thread_ = std::thread([this] { run(); });
}

void PageNet::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

int64_t PageNet::busy_ms() const {
  const int64_t since = busy_since_ns_;
  return since == 0 ? 0 : (now_ns() - since) / 1'000'000;
}

std::byte* PageNet::address(PageId page) const { return target_->page_address(page); }

PagePort::GivenUp PageNet::given_up(uint64_t generation) const {
  return [this, generation] { return stop_ || left_ >= generation; };
}

// ---- What the engine orders ----------------------------------------------------------------------------------------------

void PageNet::follow(const NetOrder& order) {
  switch (order.kind) {
    case NetOrder::Kind::kLeave: return leave(order.generation);
    case NetOrder::Kind::kRefuse: {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (pull_.number == order.pull.number && pull_.state == State::kAsked) pull_.state = State::kFailed;
      break;
    }
    case NetOrder::Kind::kJoin:
      leave(order.generation - 1);  // what came before is over
      [[fallthrough]];
    case NetOrder::Kind::kMove:
    case NetOrder::Kind::kEndParcel: {  // it waits for a move
      const std::lock_guard<std::mutex> lock(mutex_);
      orders_.push_back(order);
      break;
    }
  }
  changed_.notify_all();
}

// Whatever is under way gives up; the thread leaves the port, and only then ends the parcels.
void PageNet::leave(uint64_t generation) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ = std::max<uint64_t>(left_, generation);
    if (up_ <= left_) up_ = 0;
    if (pull_.state == State::kAsked) pull_.state = State::kFailed;
  }
  changed_.notify_all();
}

// Whoever has no memory leaves all the same.
void PageNet::leave_port() {
  try {
    host_->pass(ProtocolStep::kNetLeave);
  } catch (const std::bad_alloc&) {
  }
  leave_or_end();
  drop_parcels();
}

void PageNet::leave_or_end() {
  if (const Status left = port_->leave(); !left.ok()) host_->end_process(left);
}

// REQUIRES: the port has left, or the pages are not read for another reason.
void PageNet::drop_parcels() {
  for (;;) {
    std::shared_ptr<LentPages> lease;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (parcels_.empty()) return;
      lease = std::move(parcels_.back().second);
      parcels_.pop_back();
    }
    lease->end();
  }
}

std::shared_ptr<LentPages> PageNet::parcel(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::ranges::find(parcels_, number, [](const auto& p) { return p.first; });
  return at != parcels_.end() ? at->second : nullptr;
}

void PageNet::end_parcel(uint64_t number) {
  const std::shared_ptr<LentPages> lease = parcel(number);
  if (lease == nullptr) return;
  lease->end();
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(parcels_, [number](const auto& p) { return p.first == number; });
}

// ---- The thread ----------------------------------------------------------------------------------------------------------

void PageNet::run() {
  bool joined = false;
  for (;;) {
    NetOrder order;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      busy_since_ns_ = 0;
      changed_.wait(lock, [&] { return stop_ || !orders_.empty() || (joined && up_ == 0); });
      busy_since_ns_ = now_ns();
      if (stop_) break;
      if (orders_.empty()) {  // the generation is over
        joined = false;
        lock.unlock();
        leave_port();
        continue;
      }
      order = orders_.front();
      orders_.pop_front();
    }
    if (order.generation <= left_) continue;
    try {
      carry_out(order, &joined);
    } catch (const std::bad_alloc&) {
      fail(order.generation, Status(StatusCode::kOutOfMemory, "out of memory"));  // short enough for no memory of its own
    }
  }
  leave_port();
}

void PageNet::carry_out(const NetOrder& order, bool* joined) {
  if (order.kind == NetOrder::Kind::kJoin) {
    if (std::exchange(*joined, true)) leave_port();
    join(order);
  } else if (order.generation == up_) {
    if (order.kind == NetOrder::Kind::kEndParcel) return end_parcel(order.pull.parcel);
    order.sends ? send(order) : receive(order);
  }
}

void PageNet::join(const NetOrder& order) {
  host_->pass(ProtocolStep::kNetJoin);
  const Status status = port_->join(order.id, order.size, order.rank, given_up(order.generation));
  if (!status.ok()) return fail(order.generation, status);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (order.generation <= left_) return;
    up_ = order.generation;
  }
  host_->pass(ProtocolStep::kNetJoined);
  host_->tell({.kind = NetNews::Kind::kUp, .generation = order.generation, .why = {}, .pull = {}});
}

void PageNet::fail(uint64_t generation, const Status& why) {
  leave(generation);
  leave_port();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pull_.state == State::kMoving) pull_.state = State::kFailed;  // nobody writes to the pages any more
  }
  changed_.notify_all();
  host_->tell({.kind = NetNews::Kind::kFailed, .generation = generation, .why = why.message(), .pull = {}});
}

// After a failure the port has left: nothing of the move touches a page any more.
Status PageNet::move(PageMove* move, uint64_t generation) {
  Status status;
  try {
    host_->pass(move->sends ? ProtocolStep::kNetSend : ProtocolStep::kNetReceive);
    const PagePort::GivenUp is_over = given_up(generation);
    status = port_->move(move, [this, &is_over] {
      host_->pass(ProtocolStep::kNetMoving);
      return is_over();
    });
    if (status.ok()) host_->pass(ProtocolStep::kNetMoved);
  } catch (const std::bad_alloc&) {
    status = Status(StatusCode::kOutOfMemory, "out of memory");
  }
  if (!status.ok()) leave_or_end();
  return status;
}

// Something goes in any case: the other end waits for it. Pages that are not there any more go as what is there now, with the
// word 0. The lease is held until the move is done or the port has left.
void PageNet::send(const NetOrder& order) {
  const std::shared_ptr<LentPages> lease = parcel(order.pull.parcel);
  sent_.assign(static_cast<size_t>(order.pull.count), address(0));
  PageMove pages{
      .sends = true, .peer = order.peer, .pages = sent_, .page_bytes = static_cast<size_t>(target_->page_bytes()), .word = 0};
  Status status;
  const auto go = [&] { status = move(&pages, order.generation); };
  const auto whole = [&] {
    for (size_t i = 0; i < sent_.size(); ++i) sent_[i] = address(lease->pages()[static_cast<size_t>(order.pull.first) + i]);
    pages.word = order.pull.parcel;
    go();
  };
  const bool has_them = lease != nullptr && order.pull.first + order.pull.count <= lease->num_pages();
  if (!has_them || !lease->hold(whole)) go();
  if (!status.ok()) fail(order.generation, status);
}

// Nobody waits any more only where the generation is over, or this end was too slow: then it ends it.
void PageNet::receive(const NetOrder& order) {
  std::span<std::byte* const> to;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pull_.number == order.pull.number && pull_.state == State::kAsked) {
      pull_.state = State::kMoving;
      to = pull_.to;
    }
  }
  if (to.size() != static_cast<size_t>(order.pull.count))
    return fail(order.generation, Status(StatusCode::kTimeout, "pages come too late"));
  PageMove pages{
      .sends = false, .peer = order.peer, .pages = to, .page_bytes = static_cast<size_t>(target_->page_bytes()), .word = 0};
  const Status status = move(&pages, order.generation);
  if (!status.ok()) return fail(order.generation, status);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pull_.state = pages.word == order.pull.parcel ? State::kCame : State::kFailed;
  }
  changed_.notify_all();
}

// ---- The worker's --------------------------------------------------------------------------------------------------------

PageNet::Parcel PageNet::offer(std::shared_ptr<LentPages> lease) try {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stop_ || up_ == 0) return {};
  parcels_.emplace_back(last_parcel_ + 1, std::move(lease));
  return {.generation = up_, .number = ++last_parcel_};
} catch (const std::bad_alloc&) {  // it goes by file
  return {};
}

bool PageNet::pull(uint64_t generation, int32_t from, uint64_t parcel, int32_t first, std::span<const PageId> to) {
  for (size_t at = 0; at < to.size(); at += kMostPages) {
    const size_t count = std::min<size_t>(kMostPages, to.size() - at);
    const PagePull some{.number = 0,
                        .parcel = parcel,
                        .from = from,
                        .first = first + static_cast<int32_t>(at),
                        .count = static_cast<int32_t>(count)};
    if (!pull_some(generation, some, to.subspan(at, count))) return false;
  }
  return true;
}

// A move that has begun is waited for as long as it takes: it writes to the pages until it is done or aborted. A pull of
// kMostPages so takes kTimeoutShare - kSlackPatiences patiences at most, if the abort takes no more than its part; each is a
// turn of the worker's.
bool PageNet::pull_some(uint64_t generation, PagePull pull, std::span<const PageId> to) {
  host_->pass(ProtocolStep::kNetPull);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ || generation == 0 || generation != up_) return false;
    pull.number = ++pull_.number;
    pull_.state = State::kAsked;
    pull_.to.clear();
    for (const PageId page : to) pull_.to.push_back(address(page));
  }
  host_->tell({.kind = NetNews::Kind::kPull, .generation = generation, .why = {}, .pull = pull});
  std::unique_lock<std::mutex> lock(mutex_);
  const auto decided = [this] { return stop_ || pull_.state != State::kAsked; };
  if (!changed_.wait_for(lock, std::chrono::milliseconds(kMovesBefore * patience_ms_), decided)) pull_.state = State::kNone;
  changed_.wait(lock, [this] { return pull_.state != State::kMoving; });
  return std::exchange(pull_.state, State::kNone) == State::kCame;
}

void PageNet::end(uint64_t generation, int32_t from, uint64_t parcel) {
  if (stop_) return;
  host_->tell({.kind = NetNews::Kind::kEndParcel,
               .generation = generation,
               .why = {},
               .pull = {.number = 0, .parcel = parcel, .from = from}});
}

bool RemotePages::copy(int32_t first, std::span<const PageId> to, ModelRunner*) {
  return net_ != nullptr && net_->pull(generation_, worker_, parcel_, first, to);
}

void RemotePages::end() {
  if (PageNet* const net = std::exchange(net_, nullptr); net != nullptr) net->end(generation_, worker_, parcel_);
}

}  // namespace otr
