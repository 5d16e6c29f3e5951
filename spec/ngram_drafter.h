// NgramDrafter ("ngram"): prompt lookup. What followed the last few tokens when they last occurred, in the sequence itself or
// in another sample of its group, is proposed again, as one chain.
//
// While a device verifies a chain, the look-up is made that its being kept, and followed by what its source says, will ask for.
// Where that is what came, propose() need not look; tokens that came in between are not among those it was looked for in.
//
// A chain's acceptance is modelled by the share of its matches' tokens that were kept so far, by length of the match.
// Linear in the tokens of a group; its memory ends with the group. Single-threaded.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "spec/drafter.h"
#include "spec/keep_rate.h"
#include "spec/ngram_index.h"

namespace otr {

class NgramDrafter final : public Drafter {
 public:
  // `number`: the drafter's bit in the forests.
  explicit NgramDrafter(int number) : number_(number) {}

  void join(const DraftSequence& sequence) override;
  DraftWork propose(std::span<const DraftRow> rows, const DraftLimits& limits) override;
  void look_ahead(std::span<const DraftRow> rows) override;
  void observe(const DraftVerdict& verdict) override;
  void leave(int32_t slot) override;

 private:
  static constexpr int32_t kMinMatch = 2;
  static constexpr int32_t kPromptStream = 0;

  struct GroupIndex {
    NgramIndex index{kMinMatch};
    int64_t members = 0;
  };
  // The last tokens of a sequence: all that a look-up asks about.
  struct Tail {
    std::array<int32_t, NgramIndex::kMaxMatch> tokens;
    size_t size = 0;

    void push(int32_t token);
    std::span<const int32_t> view() const { return {tokens.data(), size}; }
  };
  struct Ahead {
    size_t num_tokens = 0;  // that the sequence has if this came; 0: nothing was prepared
    Tail tail;
    NgramIndex::Match match;

    bool came(std::span<const int32_t> sequence) const;
  };
  struct Member {
    uint64_t group = 0;
    GroupIndex* index = nullptr;
    int32_t stream = 0;
    int32_t match_length = 0;  // of the last proposal
    Ahead ahead = {};
  };
  std::span<const int32_t> source_of(const DraftSequence& s, const Member& m, const NgramIndex::Match& match) const;
  Member& member(int32_t slot) { return members_[static_cast<size_t>(slot)]; }

  const int number_;
  std::unordered_map<uint64_t, std::unique_ptr<GroupIndex>> groups_;
  std::vector<Member> members_;                            // by slot
  std::array<KeepRate, NgramIndex::kMaxMatch + 1> rates_;  // by match length
};

}  // namespace otr
