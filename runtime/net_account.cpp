#include "runtime/net_account.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "runtime/page_net.h"
#include "runtime/worker_stats.h"

namespace otr {

void SpareId::begin() try {
  auto making = std::make_shared<Making>();
  thread_ = std::thread([making, make = make_] {
    Result<NetId> id = Status(StatusCode::kOutOfMemory, "out of memory");
    try {
      id = make();
    } catch (const std::bad_alloc&) {
    }
    const std::lock_guard<std::mutex> lock(making->mutex);
    making->made = std::move(id);
    making->changed.notify_all();
  });
  next_ = std::move(making);
} catch (const std::exception&) {  // take() tries again
}

// Of one that is done nothing is left to wait for but its thread's end.
void SpareId::release() {
  if (next_ == nullptr) return;
  std::unique_lock<std::mutex> lock(next_->mutex);
  const bool is_done = next_->made.has_value();
  lock.unlock();
  if (is_done) thread_.join();
  else thread_.detach();
  next_ = nullptr;
}

Result<NetId> SpareId::take() {
  if (next_ == nullptr) begin();
  if (next_ == nullptr) return Status(StatusCode::kOutOfMemory, "no thread to make an id for a joining");
  {
    std::unique_lock<std::mutex> lock(next_->mutex);
    if (!next_->changed.wait_for(lock, patience_, [this] { return next_->made.has_value(); })) {
      return Status(StatusCode::kTimeout, "no id for a joining in " + std::to_string(patience_.count()) + " ms");
    }
  }
  const Result<NetId> id = std::move(*next_->made);  // nobody writes to it any more
  release();
  begin();
  return id;
}

void NetAccount::ready(int32_t worker) {
  at(worker).state = State::kReady;
  begin();
}

void NetAccount::lost(int32_t worker, bool comes_back) {
  at(worker).state = comes_back ? State::kStarting : State::kGone;
  failures_in_a_row_ = 0;  // others may have seen the death as a failure of theirs, and sooner
  if (at(worker).rank >= 0) end("worker " + std::to_string(worker) + " was lost");
  begin();
}

// Where somebody is still to come, it begins when that is there.
void NetAccount::begin() {
  const auto count = [this](State state) {
    return std::count_if(ends_.begin(), ends_.end(), [state](const End& e) { return e.state == state; });
  };
  const int32_t size = static_cast<int32_t>(count(State::kReady));
  if (joined_ || given_up_ || count(State::kStarting) > 0 || size < 2) return;
  const bool is_trainers = options_.first_id.has_value() && size == static_cast<int32_t>(ends_.size());
  const Result<NetId> id = is_trainers ? Result<NetId>(*std::exchange(options_.first_id, std::nullopt)) : options_.make_id();
  if (!id.ok()) {
    given_up_ = true;
    last_failure_ = id.status().message();
    return;
  }
  ++generation_;
  NetOrder join{.kind = NetOrder::Kind::kJoin,
                .generation = generation_,
                .id = id.value(),
                .size = is_trainers ? options_.num_ranks : size,
                .rank = is_trainers ? options_.first_rank : 0,
                .pull = {}};
  for (size_t worker = 0; worker < ends_.size(); ++worker) {
    if (ends_[worker].state != State::kReady) continue;
    order_(static_cast<int32_t>(worker), join);
    ++join.rank;
  }
  joined_ = true;
  int32_t next = is_trainers ? options_.first_rank : 0;
  for (End& e : ends_) {
    if (e.state == State::kReady) e.rank = next++;
  }
}

void NetAccount::end(const std::string& why) {
  std::string text = why;
  for (size_t worker = 0; worker < ends_.size(); ++worker) {
    const bool hears = ends_[worker].rank >= 0 && ends_[worker].state == State::kReady;
    if (hears) order_(static_cast<int32_t>(worker), {.kind = NetOrder::Kind::kLeave, .generation = generation_, .pull = {}});
  }
  joined_ = false;
  last_failure_ = std::move(text);
  for (End& e : ends_) e.rank = -1, e.up = e.has_pulled = false;
}

Status NetAccount::news(int32_t worker, const NetNews& news) {
  if (news.generation > generation_) return bad_input("it speaks of a joining that was not ordered");
  const bool is_of_now = joined_ && news.generation == generation_;  // else it has not heard yet that it is over
  switch (news.kind) {
    case NetNews::Kind::kUp: at(worker).up |= is_of_now; return {};
    case NetNews::Kind::kFailed:
      if (!is_of_now) return {};
      end(news.why);
      ++failures_;
      if (std::exchange(good_moves_, 0) >= kGoodMoves) failures_in_a_row_ = 0;
      given_up_ = ++failures_in_a_row_ >= kMostFailures;
      begin();
      return {};
    case NetNews::Kind::kPull: return pull(worker, news);
    case NetNews::Kind::kEndParcel:
      if (news.pull.from == worker) return bad_input("it ends a parcel of its own");
      end_parcel(news.pull.from, news.generation, news.pull.parcel);
      return {};
  }
  return {};
}

Status NetAccount::pull(int32_t worker, const NetNews& news) {
  const int32_t from = news.pull.from;
  if (from == worker || news.pull.count > PageNet::kMostPages) return bad_input("it asks for pages that nobody may ask for");
  NetOrder order{.kind = NetOrder::Kind::kRefuse, .generation = news.generation, .pull = news.pull};
  if (!joined_ || news.generation != generation_ || !at(worker).up || !at(from).up) {
    order_(worker, order);
    return {};
  }
  ++moves_;
  if (std::exchange(at(worker).has_pulled, true))
    good_moves_ = std::min(good_moves_ + 1, kGoodMoves);  // it has got what it asked for before
  order.kind = NetOrder::Kind::kMove;
  order.peer = at(from).rank;
  order_(worker, order);
  order.peer = at(worker).rank;
  order.sends = true;
  order_(from, order);
  return {};
}

void NetAccount::end_parcel(int32_t worker, uint64_t generation, uint64_t parcel) {
  if (!joined_ || generation != generation_) return;  // it has ended with the generation
  order_(worker, {.kind = NetOrder::Kind::kEndParcel, .generation = generation, .pull = {.number = 0, .parcel = parcel}});
}

bool NetAccount::is_up() const {
  return joined_ && std::all_of(ends_.begin(), ends_.end(), [](const End& e) { return e.rank < 0 || e.up; });
}

std::string NetAccount::json() const {
  return std::string("{\"up\":") + (is_up() ? "true" : "false") + ",\"generation\":" + std::to_string(generation_) +
         ",\"moves\":" + std::to_string(moves_) + ",\"failures\":" + std::to_string(failures_) +
         ",\"last_failure\":" + json_text(last_failure_) + "}";
}

}  // namespace otr
