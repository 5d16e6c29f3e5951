#include "runtime/link_relay.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/base/descriptor.h"

namespace otr {
namespace {

// Moves what there is room for; true if anything went.
template <typename T>
bool push_all(std::deque<T>* from, SpscQueue<T>* to, uint32_t* taken) {
  bool any = false;
  for (; !from->empty() && !to->full(); from->pop_front(), ++*taken, any = true) to->push(std::move(from->front()));
  return any;
}

// Takes what may be sent; true if the queue was full, so that its writer may wait for room.
template <typename T>
bool pop_all(size_t most, SpscQueue<T>* from, uint32_t* room, std::vector<T>* to) {
  bool was_full = false;
  for (T* m; *room > 0 && to->size() < most && (m = from->front()) != nullptr; from->pop(), --*room) {
    to->push_back(std::move(*m));
    was_full |= from->full();
  }
  return was_full;
}

}  // namespace

Result<std::unique_ptr<LinkRelay>> LinkRelay::create(const Options& o) {
  OwnedFd wake(above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (wake.get() < 0) return io_error("the system refuses an event file for a worker's links");
  std::unique_ptr<LinkRelay> relay(new LinkRelay(o, std::move(wake)));
  const auto add = [&](int32_t number) {
    const bool serves = server_of(number, o.num_draft_workers) == o.worker;
    const uint32_t seed = o.delay_seed == 0 ? 0 : o.delay_seed + 3 * static_cast<uint32_t>(number);
    End end;
    end.number = number;
    end.serves = serves;
    end.is_local = serves && number == o.worker;
    end.link = std::make_unique<DraftLink>(o.capacity, seed);
    end.room.fill(static_cast<uint32_t>(o.capacity));
    relay->ends_.push_back(std::move(end));
  };
  add(o.worker);
  for (int32_t other = 0; other < o.num_workers; ++other) {
    if (other != o.worker && server_of(other, o.num_draft_workers) == o.worker) add(other);
  }
  return relay;
}

std::vector<DraftLink*> LinkRelay::served() {
  std::vector<DraftLink*> links;
  for (const End& end : ends_) {
    if (end.serves) links.push_back(end.link.get());
  }
  return links;
}

void LinkRelay::connect(LinkBell* worker) {
  for (End& end : ends_) {
    end.worker = worker;
    end.link->server = end.serves ? worker : this;
    end.link->verifier = end.is_local || !end.serves ? worker : this;
  }
}

void LinkRelay::ring() {
  if (rung_.exchange(true)) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);  // it fails only when it is full of such
}

LinkRelay::End* LinkRelay::find(int32_t link) {
  const auto at = std::find_if(ends_.begin(), ends_.end(), [link](const End& e) { return e.number == link && !e.is_local; });
  return at == ends_.end() ? nullptr : &*at;
}

// Everything that is on its way belongs to the past.
Status LinkRelay::follow(const Relink& relink) {
  End* const end = find(relink.link);
  if (end == nullptr) return bad_input("a link that does not end here was lost");
  end->opened.clear();
  end->verdicts.clear();
  end->drafts.clear();
  end->room.fill(static_cast<uint32_t>(options_.capacity));
  end->taken = {};
  end->link->generation.store(relink.generation, std::memory_order_release);
  end->worker->ring();
  return {};
}

Status LinkRelay::receive(WireView payload) {
  const uint32_t capacity = static_cast<uint32_t>(options_.capacity);
  OTR_ASSIGN_OR_RETURN(
      LinkMessage m,
      decode_link(payload, {.start = options_.limits, .num_workers = options_.num_workers, .capacity = capacity}));
  End* const end = find(m.link);
  if (end == nullptr) return bad_input("a message comes on a link that does not end here");
  if (m.generation != end->link->generation.load(std::memory_order_relaxed)) return {};
  for (size_t queue = 0; queue < end->room.size(); ++queue) {
    if (m.taken[queue] > capacity - end->room[queue]) return bad_input("more was taken on a link than was sent");
    end->room[queue] += m.taken[queue];
  }
  std::move(m.opened.begin(), m.opened.end(), std::back_inserter(end->opened));
  end->verdicts.insert(end->verdicts.end(), m.verdicts.begin(), m.verdicts.end());
  end->drafts.insert(end->drafts.end(), m.drafts.begin(), m.drafts.end());
  if (std::max({end->opened.size(), end->verdicts.size(), end->drafts.size()}) > capacity)
    return bad_input("more comes on a link than it has room for");
  return {};
}

void LinkRelay::deliver(End* end) {
  DraftLink& link = *end->link;
  bool any = push_all(&end->opened, &link.opened, &end->taken[LinkMessage::kOpened]);
  // A verdict is never seen before the opening of its request.
  if (end->opened.empty()) any |= push_all(&end->verdicts, &link.verdicts, &end->taken[LinkMessage::kVerdicts]);
  any |= push_all(&end->drafts, &link.drafts, &end->taken[LinkMessage::kDrafts]);
  if (any) end->worker->ring();
  owes_ |= !end->opened.empty() || !end->verdicts.empty() || !end->drafts.empty();
}

void LinkRelay::collect(End* end) {
  DraftLink& link = *end->link;
  message_.clear();
  message_.link = end->number;
  message_.generation = link.generation.load(std::memory_order_relaxed);
  bool was_full = false;
  if (end->serves) {
    was_full = pop_all(link.drafts.size(), &link.drafts, &end->room[LinkMessage::kDrafts], &message_.drafts);
    owes_ |= end->room[LinkMessage::kDrafts] > 0 && !link.drafts.empty();
  } else {
    // Likewise: whatever verdict was there before, its request's opening was too. One that finds no room keeps the verdicts
    // behind it.
    const size_t num_verdicts = link.verdicts.size();
    was_full = pop_all(options_.capacity, &link.opened, &end->room[LinkMessage::kOpened], &message_.opened);
    if (link.opened.empty())
      was_full |= pop_all(num_verdicts, &link.verdicts, &end->room[LinkMessage::kVerdicts], &message_.verdicts);
    owes_ |= (end->room[LinkMessage::kOpened] > 0 && !link.opened.empty()) ||
             (link.opened.empty() && end->room[LinkMessage::kVerdicts] > 0 && !link.verdicts.empty());
  }
  message_.taken = std::exchange(end->taken, {});
  if (was_full) end->worker->ring();
}

Status LinkRelay::pump(const std::function<Status(const LinkMessage&)>& send) {
  uint64_t ignored;
  (void)!read(wake_.get(), &ignored, sizeof ignored);  // always: whoever rings may not have written yet when pump() last looked
  rung_.store(false);                                  // before looking: whoever writes from here on rings again
  owes_ = false;
  for (End& end : ends_) {
    if (end.is_local) continue;
    DraftLink& link = *end.link;
    if (!link.is_current()) {
      if (end.serves) link.drafts.clear();
      else link.opened.clear(), link.verdicts.clear();
      continue;  // the worker rings when it has followed
    }
    deliver(&end);
    collect(&end);
    if (!message_.empty()) OTR_RETURN_IF_ERROR(send(message_));
  }
  return {};
}

}  // namespace otr
