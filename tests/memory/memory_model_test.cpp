// A random test of page pool, prefix cache and page tables against a naive model of what they promise.
//
// The model knows for every page who holds it, which prefix it is cached for, and when it became evictable. Page contents are
// modelled too: a key-value slot holds a hash of the version and of all tokens up to its position, as real keys and values do,
// so that a page that is shared, copied, evicted or found wrongly shows up as a sequence that reads something else.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memory/page_table.h"
#include "tests/runtime/sanitized.h"

namespace otr {
namespace {

using Tokens = std::vector<int32_t>;

uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

struct ModelSequence {
  Tokens tokens;
  int32_t num_prompt = 0;
  int32_t num_computed = 0;
  int version = 0;
  bool offered = false;
  PageTable table;
};

class MemoryModel {
 public:
  enum class Fault { kNone, kForgetCopies, kForgetZeroing, kOfferStaleVersion };

  MemoryModel(uint32_t seed, int32_t num_pages, Fault fault)
      : random_(seed),
        fault_(fault),
        pool_(num_pages),
        cache_(&pool_),
        references_(static_cast<size_t>(num_pages), 0),
        prefix_of_(static_cast<size_t>(num_pages)),
        slots_(static_cast<size_t>(num_pages)) {}
  ~MemoryModel() {
    for (auto& s : sequences_) s->table.release_all(&pool_);
  }

  // One random operation, then the comparison. False once something is wrong; `error` says what.
  bool step() {
    operation();
    if (error.empty()) compare();
    if (error.empty() && ++steps_ % 8 == 0) compare_contents();
    return error.empty();
  }

  std::string error;
  std::map<std::string, int> operations;  // how often each really happened

 private:
  int32_t below(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  int32_t available() const { return static_cast<int32_t>(std::count(references_.begin(), references_.end(), 0)); }
  void expect(bool condition, const std::string& what) {
    if (!condition && error.empty()) error = what;
  }

  void operation() {
    const int32_t choice = below(100);
    if (sequences_.empty() || (choice < 8 && sequences_.size() < 10)) return start();
    ModelSequence& s = *sequences_[static_cast<size_t>(below(static_cast<int32_t>(sequences_.size())))];
    if (choice < 60) return write(s);
    if (choice < 75) return append(s);
    if (choice < 85) return fork(s);
    if (choice < 92) return finish(s);
    if (choice < 99) return preempt(s);
    if (below(10) == 0) clear();
  }

  // Prompts come from a small tree of pages, so that prefixes repeat and nearly repeat.
  void start() {
    ++operations["start"];
    auto s = std::make_unique<ModelSequence>();
    const int32_t pages = below(4);
    for (int32_t i = 0; i < pages; ++i) {
      const int32_t kind = below(3);
      for (int32_t j = 0; j < kPageTokens; ++j) s->tokens.push_back(j == kPageTokens - 1 ? kind : i);
    }
    for (int32_t rest = 1 + below(kPageTokens); rest > 0; --rest) s->tokens.push_back(7);
    s->num_prompt = static_cast<int32_t>(s->tokens.size());
    s->version = version_;
    attach(*s);
    sequences_.push_back(std::move(s));
  }

  void attach(ModelSequence& s) {
    std::vector<PageId> expected;
    const size_t most = (s.tokens.size() - 1) / kPageTokens;
    for (size_t i = 1; i <= most && s.version == version_; ++i) {
      const auto it = cached_.find(Tokens(s.tokens.begin(), s.tokens.begin() + static_cast<std::ptrdiff_t>(i * kPageTokens)));
      if (it == cached_.end()) break;
      expected.push_back(it->second);
    }
    if (s.version != version_) return;  // an old version's sequence must not look
    s.num_computed = s.table.attach_prefix(&cache_, s.tokens);
    expect(s.table.pages() == expected, "attach_prefix found other pages than the model");
    expect(s.num_computed == static_cast<int32_t>(expected.size()) * kPageTokens, "attach_prefix miscounts");
    for (const PageId page : expected) hold(page);
    operations["prefix hit"] += !expected.empty();
  }

  void write(ModelSequence& s) {
    const int32_t behind = static_cast<int32_t>(s.tokens.size()) - s.num_computed;
    if (behind == 0) return;
    const int32_t begin = s.num_computed, end = begin + 1 + below(behind);
    const bool copies = begin % kPageTokens != 0 && references_[index(page_at(s, begin))] > 1;
    const int32_t needed = (end + kPageTokens - 1) / kPageTokens - s.table.num_pages() + copies;
    expect(s.table.pages_to_write(pool_, begin, end) == needed, "pages_to_write differs from the model");
    if (needed > available()) return;
    ++operations["write"];
    const std::vector<PageId> before = s.table.pages();
    PageWork work;
    s.table.prepare_write(&cache_, &pool_, begin, end, &work);
    apply(work, before, s, copies);
    for (int32_t p = begin; p < end; ++p) {
      const PageId page = page_at(s, p);
      expect(references_[index(page)] == 1 && prefix_of_[index(page)].empty(), "a page that others can see is written");
      slots_[index(page)][static_cast<size_t>(p % kPageTokens)] = content(s, p);
    }
    s.num_computed = end;
    if (!s.offered && end >= s.num_prompt && (s.version == version_ || fault_ == Fault::kOfferStaleVersion)) offer(s);
  }

  // Follows what prepare_write says it did: copies, then zeroes.
  void apply(const PageWork& work, const std::vector<PageId>& before, const ModelSequence& s, bool copies) {
    expect(work.copy_to.size() == (copies ? 1u : 0u) && work.copy_from.size() == work.copy_to.size(), "an unexpected copy");
    std::set<PageId> fresh;
    for (const std::vector<PageId>* list : {&work.copy_to, &work.zero}) {
      for (const PageId page : *list) {
        allocated(page);
        expect(fresh.insert(page).second, "a page is handed out twice");
      }
    }
    for (size_t i = 0; i < work.copy_to.size(); ++i) {
      expect(fresh.count(work.copy_from[i]) == 0, "a page is copied from and to in one step");
      if (fault_ != Fault::kForgetCopies) slots_[index(work.copy_to[i])] = slots_[index(work.copy_from[i])];
      drop(work.copy_from[i]);
      ++operations["copy"];
    }
    for (const PageId page : work.zero) {
      if (fault_ != Fault::kForgetZeroing) slots_[index(page)].fill(0);
    }
    expect(s.table.num_pages() == static_cast<int32_t>(before.size() + work.zero.size()), "the table has a wrong length");
  }

  // The pool hands out a free page if there is one, else the one that has been evictable longest.
  void allocated(PageId page) {
    if (std::find(evictable_.begin(), evictable_.end(), page) != evictable_.end()) {
      expect(num_free() == 0, "a page was evicted while another was free");
      expect(evictable_.front() == page, "not the oldest evictable page was evicted");
      evictable_.pop_front();
      cached_.erase(prefix_of_[index(page)]);
      prefix_of_[index(page)].clear();
      ++operations["eviction"];
    }
    expect(references_[index(page)] == 0, "a page in use was handed out");
    ++references_[index(page)];
  }

  void offer(ModelSequence& s) {
    s.offered = true;
    const int32_t full = s.num_prompt / kPageTokens;
    if (below(2) == 0) return publish(s, full);
    cache_.insert(s.tokens, s.table.pages(), full);
    for (int32_t i = 0; i < full; ++i) {
      const Tokens prefix(s.tokens.begin(), s.tokens.begin() + std::ptrdiff_t{i + 1} * kPageTokens);
      const PageId page = s.table.pages()[static_cast<size_t>(i)];
      const auto [it, fresh] = cached_.emplace(prefix, page);
      if (fresh) prefix_of_[index(page)] = prefix;
      if (it->second != page) break;
      operations["insert"] += fresh;
    }
  }

  // What others have cached takes the place of its own copies.
  void publish(ModelSequence& s, int32_t full) {
    const std::vector<PageId> before = s.table.pages();
    s.table.publish(&cache_, s.tokens, full);
    bool adopted = false;
    for (int32_t i = 0; i < full; ++i) {
      const Tokens prefix(s.tokens.begin(), s.tokens.begin() + std::ptrdiff_t{i + 1} * kPageTokens);
      const PageId own = before[static_cast<size_t>(i)];
      if (adopted && references_[index(own)] > 1 && cached_.count(prefix) == 0) {
        expect(s.table.pages()[static_cast<size_t>(i)] == own, "a page that others hold has changed");
        ++operations["publish in part"];
        break;
      }
      const auto [it, fresh] = cached_.emplace(prefix, own);
      if (fresh) prefix_of_[index(own)] = prefix;
      if (it->second != own) {
        adopted = true;
        hold(it->second);
        drop(own);
        ++operations["adopt"];
      }
      expect(s.table.pages()[static_cast<size_t>(i)] == it->second, "a published page is not the cached one");
    }
    ++operations["publish"];
  }

  void append(ModelSequence& s) {
    const int32_t size = static_cast<int32_t>(s.tokens.size());
    if (s.num_computed < size || size >= kPageTokens * pool_.num_pages()) return;
    ++operations["append"];
    s.tokens.push_back(below(5));
  }

  void fork(ModelSequence& s) {
    if (sequences_.size() >= 10 || s.num_computed < s.num_prompt) return;
    ++operations["fork"];
    auto f = std::make_unique<ModelSequence>();
    f->tokens = s.tokens;
    f->num_prompt = s.num_prompt;
    f->num_computed = s.num_computed;
    f->version = s.version;
    f->offered = true;
    f->table.share_from(s.table, &pool_);
    for (const PageId page : f->table.pages()) hold(page);
    f->tokens.push_back(below(5));
    sequences_.push_back(std::move(f));
  }

  void release(ModelSequence& s) {
    for (auto it = s.table.pages().rbegin(); it != s.table.pages().rend(); ++it) drop(*it);
    s.table.release_all(&pool_);
    s.num_computed = 0;
  }

  void finish(ModelSequence& s) {
    ++operations["finish"];
    if (s.version == version_ || fault_ == Fault::kOfferStaleVersion) publish(s, s.num_computed / kPageTokens);
    release(s);
    sequences_.erase(std::find_if(sequences_.begin(), sequences_.end(), [&s](const auto& p) { return p.get() == &s; }));
  }

  void preempt(ModelSequence& s) {
    ++operations["preempt"];
    int32_t alone = 0;
    for (const PageId page : s.table.pages()) alone += references_[index(page)] == 1;
    expect(s.table.num_private(pool_) == alone, "num_private differs from the model");
    const int32_t had = available();
    release(s);
    expect(available() == had + alone, "giving up pages freed another number than num_private");
    s.offered = s.version != version_;
    attach(s);
  }

  void clear() {  // new weights
    ++operations["clear"];
    ++version_;
    cache_.clear();
    cached_.clear();
    evictable_.clear();
    for (Tokens& prefix : prefix_of_) prefix.clear();
  }

  static size_t index(PageId page) { return static_cast<size_t>(page); }
  static PageId page_at(const ModelSequence& s, int32_t position) {
    return s.table.pages()[static_cast<size_t>(position / kPageTokens)];
  }
  int32_t num_free() const { return available() - static_cast<int32_t>(evictable_.size()); }
  void hold(PageId page) {
    if (references_[index(page)]++ == 0) evictable_.erase(std::find(evictable_.begin(), evictable_.end(), page));
  }
  void drop(PageId page) {
    if (--references_[index(page)] == 0 && !prefix_of_[index(page)].empty()) evictable_.push_back(page);
  }
  static uint64_t content(const ModelSequence& s, int32_t position) {
    uint64_t h = static_cast<uint64_t>(s.version) + 1;
    for (int32_t p = 0; p <= position; ++p) h = mix(h, static_cast<uint64_t>(s.tokens[static_cast<size_t>(p)]) + 11);
    return h | 1;  // never 0: an unwritten slot
  }

  void compare() {
    expect(pool_.num_free() == num_free(), "num_free differs from the model");
    expect(pool_.num_evictable() == static_cast<int32_t>(evictable_.size()), "num_evictable differs from the model");
    expect(pool_.num_in_use() == pool_.num_pages() - available(), "num_in_use differs from the model");
    expect(cache_.num_available() == available(), "num_available differs from the model");
    expect(pool_.oldest_evictable() == (evictable_.empty() ? kNoPage : evictable_.front()), "oldest_evictable differs");
    for (PageId page = 0; page < pool_.num_pages(); ++page) {
      expect(pool_.cached(page) == !prefix_of_[index(page)].empty(), "a page is cached in one of cache and model only");
    }
    const Status pool = pool_.check(references_), cache = cache_.check();
    expect(pool.ok(), pool.message());
    expect(cache.ok(), cache.message());
  }

  void compare_contents() {
    for (const auto& s : sequences_) {
      uint64_t h = static_cast<uint64_t>(s->version) + 1;
      for (int32_t p = 0; p < s->table.num_pages() * kPageTokens; ++p) {
        const uint64_t slot = slots_[index(page_at(*s, p))][static_cast<size_t>(p % kPageTokens)];
        if (p < s->num_computed) {
          h = mix(h, static_cast<uint64_t>(s->tokens[static_cast<size_t>(p)]) + 11);
          expect(slot == (h | 1), "a sequence reads keys and values that are not its own");
        }
      }
      // Behind the newest position of a page that nobody shares there is nothing of an earlier owner.
      if (s->num_computed == 0 || s->num_computed % kPageTokens == 0) continue;
      const PageId last = page_at(*s, s->num_computed);
      for (int32_t slot = s->num_computed % kPageTokens; slot < kPageTokens && references_[index(last)] == 1; ++slot) {
        expect(slots_[index(last)][static_cast<size_t>(slot)] == 0 || s->offered,
               "a new page holds what an earlier owner wrote");
      }
    }
  }

  std::mt19937 random_;
  const Fault fault_;
  PagePool pool_;
  PrefixCache cache_;
  std::vector<std::unique_ptr<ModelSequence>> sequences_;
  int version_ = 0;
  int64_t steps_ = 0;

  // The naive model.
  std::vector<int32_t> references_;  // by page
  std::vector<Tokens> prefix_of_;    // by page: the prefix it is cached for; empty if it is not
  std::map<Tokens, PageId> cached_;
  std::deque<PageId> evictable_;                          // oldest first
  std::vector<std::array<uint64_t, kPageTokens>> slots_;  // by page: contents
};

TEST(MemoryModel, TwoHundredThousandOperationsAgree) {
  const int32_t rounds = kSanitized ? 3'500 : 35'000;
  std::map<std::string, int> total;
  for (const int32_t num_pages : {4, 7, 12, 16, 24, 48}) {
    MemoryModel model(static_cast<uint32_t>(num_pages), num_pages, MemoryModel::Fault::kNone);
    for (int32_t i = 0; i < rounds; ++i) ASSERT_TRUE(model.step()) << num_pages << " pages, step " << i << ": " << model.error;
    for (const auto& [name, count] : model.operations) total[name] += count;
  }
  for (const char* name : {"start", "prefix hit", "write", "copy", "eviction", "insert", "publish", "adopt", "append", "fork",
                           "finish", "preempt", "clear"}) {
    EXPECT_GT(total[name], rounds / 500) << name << " hardly happened";
  }
}

// The model finds an engine that forgets one of its duties.
TEST(MemoryModelInverse, ForgottenDutiesAreFound) {
  using Fault = MemoryModel::Fault;
  for (const auto fault : {Fault::kForgetCopies, Fault::kForgetZeroing, Fault::kOfferStaleVersion}) {
    MemoryModel model(1, 12, fault);
    int32_t steps = 0;
    while (steps < 20'000 && model.step()) ++steps;
    EXPECT_NE(model.error, "") << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace otr
