// The forward pass on every path: a row's logits depend on its own sequence alone, and on none of its company, pages or chunks.

#include "graph/forward_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "graph/row_batch_builder.h"
#include "kernels/base/thread_pool.h"
#include "tests/memory/resident.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/rollouts.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

constexpr int32_t kNumPages = 40, kMaxRows = 512;

// Rows of one sequence: positions [begin, end), on these pages.
struct Piece {
  const std::vector<int32_t>* tokens;
  int32_t begin, end;
  std::vector<PageId> pages;
};

using Row = std::vector<uint32_t>;  // the bits of one row of logits

// "row 3" where two runs differ first; "" if nowhere.
std::string difference(const std::vector<Row>& a, const std::vector<Row>& b) {
  if (a.size() != b.size()) return std::to_string(a.size()) + " and " + std::to_string(b.size()) + " rows";
  for (size_t r = 0; r < a.size(); ++r) {
    if (a[r] != b[r]) return "row " + std::to_string(r);
  }
  return "";
}

class Program {
 public:
  Program(const char* isa, const TinyModel& model, int num_threads) : pool_(num_threads), layout_(model.layout()) {
    Result<OpenModel> opened = open_model(model.path());
    if (!opened.ok()) throw std::runtime_error(opened.status().message());
    Result<ModelWeights> weights = ModelWeights::load(opened.value().config, *opened.value().weights, pool_);
    if (!weights.ok()) throw std::runtime_error(weights.status().message());
    weights_ = std::move(weights.value());
    pages_ = std::move(Buffer<Element>::create(kNumPages * layout_.page_elements(), "pages").value());
    kernels_ = select_kernels(isa).value();
    layout_.packing = kernels_->kv_packing;
    Result<ForwardProgram> program = another({kMaxRows, kMaxRows}, {});
    if (!program.ok()) throw std::runtime_error(program.status().message());
    program_ = std::make_unique<ForwardProgram>(std::move(program.value()));
  }

  Result<ForwardProgram> of_another_packing() {
    KvLayout other = layout_;
    other.packing = layout_.packing == KvPacking::kRows ? KvPacking::kPairs : KvPacking::kRows;
    return ForwardProgram::create(*kernels_, weights_, nullptr, other, pages_.data(), {kMaxRows, kMaxRows}, pool_, {});
  }

  // One more of the same model.
  Result<ForwardProgram> another(ProgramBucket bucket, const ProgramOptions& options) {
    return ForwardProgram::create(*kernels_, weights_, nullptr, layout_, pages_.data(), bucket, pool_, options);
  }

  // Runs the pieces as one batch. Returns the logits of every row, piece after piece.
  std::vector<Row> run(const std::vector<Piece>& pieces, LayerGate* gate = nullptr) {
    const ModelConfig& c = weights_.config();
    RowBatchBuilder builder({kMaxRows, 64, kMaxRows, kNumPages}, attention_tile_rows(c.num_heads, c.num_kv_heads));
    for (const Piece& p : pieces) {
      builder.add(std::span(*p.tokens).subspan(static_cast<size_t>(p.begin), static_cast<size_t>(p.end - p.begin)), p.begin,
                  p.pages, 0);
    }
    const RowBatch batch = builder.batch();
    program_->run(batch, nullptr, gate);
    std::vector<Row> rows;
    for (int32_t r = 0; r < batch.num_rows; ++r) {
      rows.push_back(bits_of(program_->logits() + int64_t{r} * c.vocab_size, static_cast<size_t>(c.vocab_size)));
    }
    return rows;
  }
  bool faulted(int32_t row) const { return program_->fault()[row] != 0; }

  // One layer of a page.
  std::span<Element> layer(PageId page, int32_t layer) {
    return {pages_.data() + page * layout_.page_elements() + layer * layout_.layer_elements(),
            static_cast<size_t>(layout_.layer_elements())};
  }
  // Fills a page with one value everywhere.
  void fill(PageId page, float value) {
    Element* begin = pages_.data() + page * layout_.page_elements();
    std::fill(begin, begin + layout_.page_elements(), to_element(value));
  }

 private:
  ThreadPool pool_;
  KvLayout layout_;
  const KernelTable* kernels_ = nullptr;
  ModelWeights weights_;
  Buffer<Element> pages_;
  std::unique_ptr<ForwardProgram> program_;
};

class ForwardProgramTest : public EveryPath {
 protected:
  // One token at a time on pages 0, 1, …: the definition of every row.
  static std::vector<Row> one_by_one(Program* program, const std::vector<int32_t>& tokens) {
    std::vector<PageId> pages;
    for (size_t i = 0; i <= tokens.size() / kPageTokens; ++i) {
      pages.push_back(static_cast<PageId>(i));
      program->fill(pages.back(), 0.0f);
    }
    std::vector<Row> rows;
    for (int32_t p = 0; p < static_cast<int32_t>(tokens.size()); ++p)
      rows.push_back(program->run({{&tokens, p, p + 1, pages}})[0]);
    return rows;
  }
};

TEST_P(ForwardProgramTest, ARowAloneInAChunkAndInCompanyIsTheSame) {
  for (const int32_t head_dim : {32, 64}) {
    SCOPED_TRACE("head_dim " + std::to_string(head_dim));
    const TinyModel model({.num_layers = 2, .num_heads = 3, .head_dim = head_dim});
    Program program(GetParam(), model, 2);
    const std::vector<int32_t> tokens = random_tokens(1, 300, 97);
    const std::vector<Row> expected = one_by_one(&program, tokens);
    EXPECT_TRUE(expected[298] != expected[299]);

    const std::vector<PageId> pages = {31, 7, 22, 9, 14};
    for (const int32_t chunk : {300, 100, 64, 7}) {
      for (const PageId page : pages) program.fill(page, 0.0f);
      std::vector<Row> rows;
      for (int32_t begin = 0; begin < 300; begin += chunk) {
        for (Row& row : program.run({{&tokens, begin, std::min(300, begin + chunk), pages}})) rows.push_back(std::move(row));
      }
      EXPECT_EQ(difference(rows, expected), "") << "chunk " << chunk;
    }

    // Five sequences that are at different points, this one between them, in pieces of random size.
    std::mt19937 random(2);
    struct Company {
      std::vector<int32_t> tokens;
      std::vector<PageId> pages;
      int32_t computed = 0;
    };
    std::vector<Company> all;
    PageId next_page = 0;
    for (uint32_t s = 0; s < 6; ++s) {
      all.push_back({s == 3 ? tokens : random_tokens(10 + s, 300, 97), {}, 0});
      for (int i = 0; i < 5; ++i) {
        program.fill(next_page, 0.0f);
        all.back().pages.push_back(next_page++);
      }
      std::reverse(all.back().pages.begin(), all.back().pages.end());
    }
    std::vector<Row> rows;
    while (all[3].computed < 300) {
      std::vector<Piece> pieces;
      size_t first = 0, count = 0, total = 0;
      for (size_t s = 0; s < all.size(); ++s) {
        const int32_t left = 300 - all[s].computed;
        const int32_t size = std::min(left, static_cast<int32_t>(random() % 3 == 0 ? 1 + random() % 40 : random() % 2));
        if (size == 0) continue;
        if (s == 3) first = total, count = static_cast<size_t>(size);
        total += static_cast<size_t>(size);
        pieces.push_back({&all[s].tokens, all[s].computed, all[s].computed + size, all[s].pages});
        all[s].computed += size;
      }
      if (pieces.empty()) continue;
      const std::vector<Row> batch = program.run(pieces);
      for (size_t r = first; r < first + count; ++r) rows.push_back(batch[r]);
    }
    EXPECT_EQ(difference(rows, expected), "") << "in company";
  }
}

TEST_P(ForwardProgramTest, ThreadsChangeNothing) {
  const TinyModel model({.num_layers = 2});
  const std::vector<int32_t> tokens = random_tokens(3, 200, 97);
  const std::vector<PageId> pages = {3, 2, 1, 0};
  std::vector<Row> expected;
  for (const int threads : {1, 2, 3, 5}) {
    Program program(GetParam(), model, threads);
    const std::vector<Row> rows = program.run({{&tokens, 0, 200, pages}});
    if (threads == 1) expected = rows;
    EXPECT_EQ(difference(rows, expected), "") << threads;
  }
}

// Everything that is not the sequence's own past is poisoned: other pages are NaN, slots to come hold what an earlier owner
// might have left.
TEST_P(ForwardProgramTest, OtherPagesAndLaterSlotsAreNeverSeen) {
  const TinyModel model({.num_layers = 2});
  Program program(GetParam(), model, 1);
  const std::vector<int32_t> tokens = random_tokens(4, 150, 97);
  const std::vector<Row> expected = one_by_one(&program, tokens);
  const std::vector<PageId> pages = {20, 11, 30};
  for (PageId page = 0; page < kNumPages; ++page) program.fill(page, std::nanf(""));
  for (const PageId page : pages) program.fill(page, -37.5f);
  EXPECT_EQ(difference(program.run({{&tokens, 0, 150, pages}}), expected), "");
  for (const PageId page : pages) program.fill(page, 120.0f);
  std::vector<Row> rows = program.run({{&tokens, 0, 149, pages}});
  rows.push_back(program.run({{&tokens, 149, 150, pages}})[0]);
  EXPECT_EQ(difference(rows, expected), "");
}

// The inverse: what the sequence itself wrote does matter, so that the poison above would have been found.
TEST_P(ForwardProgramTest, ItsOwnPagesAreSeen) {
  const TinyModel model;
  Program program(GetParam(), model, 1);
  const std::vector<int32_t> tokens = random_tokens(4, 150, 97);
  const std::vector<Row> expected = one_by_one(&program, tokens);
  program.fill(1, 1.0f);
  EXPECT_TRUE(program.run({{&tokens, 149, 150, {0, 1, 2}}})[0] != expected[149]);
}

// Copies the layers of pages into others as the pass comes to them: all of them, or all but one.
class LateLayers final : public LayerGate {
 public:
  LateLayers(Program* program, const std::vector<PageId>& from, const std::vector<PageId>& to, int32_t left_out)
      : program_(*program), from_(from), to_(to), left_out_(left_out) {}
  void before_layer(int32_t layer) override {
    EXPECT_EQ(layer, asked_++);
    for (size_t i = 0; i < to_.size() && layer != left_out_; ++i) {
      std::ranges::copy(program_.layer(from_[i], layer), program_.layer(to_[i], layer).begin());
    }
  }
  int32_t asked() const { return asked_; }

 private:
  Program& program_;
  const std::vector<PageId> from_, to_;
  const int32_t left_out_;
  int32_t asked_ = 0;
};

// The page that the rows write on is among those that come late. A layer that does not come is seen, whichever it is; other
// rows see nothing.
TEST_P(ForwardProgramTest, EarlierPositionsMayComeAsLateAsTheirLayer) {
  const TinyModel model({.num_layers = 3});
  Program program(GetParam(), model, 2);
  const std::vector<int32_t> tokens = random_tokens(4, 150, 97), others = random_tokens(5, 80, 97);
  const std::vector<Row> expected_others = one_by_one(&program, others), expected = one_by_one(&program, tokens);
  const std::vector<PageId> others_pages = {20, 21}, pages = {30, 31, 32};
  for (const PageId page : others_pages) program.fill(page, 0.0f);
  program.run({{&others, 0, 79, others_pages}});
  for (const int32_t left_out : {-1, 0, 1, 2}) {
    for (const PageId page : pages) program.fill(page, std::nanf(""));
    for (const PageId page : {0, 1, 2}) program.fill(page, 0.0f);
    program.run({{&tokens, 0, 149, {0, 1, 2}}});
    LateLayers late(&program, {0, 1, 2}, pages, left_out);
    const std::vector<Row> rows = program.run({{&tokens, 149, 150, pages}, {&others, 79, 80, others_pages}}, &late);
    EXPECT_EQ(late.asked(), 3);
    EXPECT_EQ(rows[0] == expected[149], left_out < 0) << left_out;
    EXPECT_TRUE(rows[1] == expected_others[79]) << left_out;
  }
}

TEST_P(ForwardProgramTest, ANanMarksItsRowAndTouchesNoOther) {
  const TinyModel model({.num_layers = 2, .nan_embedding = 96});
  Program program(GetParam(), model, 1);
  const std::vector<int32_t> good = random_tokens(5, 100, 96);
  const std::vector<Row> expected = one_by_one(&program, good);
  std::vector<int32_t> bad = good;
  bad[40] = 96;
  for (const PageId page : {10, 11, 12, 13}) program.fill(page, 0.0f);
  const std::vector<Row> rows = program.run({{&bad, 0, 60, {10, 11}}, {&good, 0, 100, {12, 13}}});
  for (int32_t r = 0; r < 160; ++r) EXPECT_EQ(program.faulted(r), r == 40) << r;
  EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 40, expected.begin())) << "rows before the bad one";
  EXPECT_TRUE(std::equal(rows.begin() + 60, rows.end(), expected.begin())) << "the other sequence's";
  program.run({{&good, 0, 1, {12, 13}}});
  EXPECT_FALSE(program.faulted(0)) << "flags are those of the last run";
}

// What the kernels do not take is an error, never a wrong number.
TEST_P(ForwardProgramTest, AnOddHeadDimIsRefused) {
  for (const int32_t head_dim : {16, 48, 80}) {
    const TinyModel model({.head_dim = head_dim});
    try {
      Program program(GetParam(), model, 1);
      FAIL() << head_dim;
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find("head_dim " + std::to_string(head_dim)), std::string::npos) << e.what();
    }
  }
}

// A program that has too few rows lends neither its buffers nor its logits.
// No pass waits for the system: logits are there before the first one, and again after a sleep.
TEST_P(ForwardProgramTest, ItsMemoryIsThereBeforeItsFirstPass) {
  const TinyModel model;
  Program others(GetParam(), model, 1);
  Result<ForwardProgram> made = others.another({kMaxRows, kMaxRows}, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  ForwardProgram& program = made.value();
  const size_t bytes = sizeof(float) * kMaxRows * static_cast<size_t>(model.shape().vocab_size);
  if (!system_populates(program.logits())) GTEST_SKIP() << "the system does not populate";
  EXPECT_TRUE(is_resident(program.logits(), bytes));
  ASSERT_TRUE(program.sleep().ok());
  EXPECT_FALSE(is_resident(program.logits(), bytes));
  ASSERT_TRUE(program.wake().ok());
  EXPECT_TRUE(is_resident(program.logits(), bytes));
}

TEST_P(ForwardProgramTest, ATooSmallProgramLendsNothing) {
  const TinyModel model;
  Program program(GetParam(), model, 1);
  const auto with = [&program](int32_t rows, const ProgramOptions& options) { return program.another({rows, rows}, options); };
  const Result<ForwardProgram> small = with(4, {}), large = with(16, {});
  ASSERT_TRUE(small.ok() && large.ok());
  for (const bool both : {false, true}) {  // buffers from one program, or logits from another too
    const ForwardProgram* lender = both ? &large.value() : nullptr;
    const Result<ForwardProgram> own = with(16, {.logits_of = lender, .share = &small.value()}),
                                 shared = with(4, {.logits_of = lender, .share = &small.value()});
    ASSERT_TRUE(own.ok() && shared.ok());
    EXPECT_EQ(own.value().logits() == large.value().logits(), both);
    EXPECT_NE(own.value().logits(), small.value().logits());
    EXPECT_GT(own.value().buffer_bytes(), 0);
    EXPECT_EQ(shared.value().logits(), both ? large.value().logits() : small.value().logits());
    EXPECT_EQ(shared.value().buffer_bytes(), 0);
  }
  const Result<ForwardProgram> refused = with(16, {.logits_of = &small.value()});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInternal);
  EXPECT_NE(refused.status().message().find("16 rows"), std::string::npos) << refused.status().message();
}

TEST_P(ForwardProgramTest, PagesOfAnotherPackingAreRefused) {
  const TinyModel model;
  Program program(GetParam(), model, 1);
  const Result<ForwardProgram> refused = program.of_another_packing();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("packed"), std::string::npos) << refused.status().message();
}

OTR_INSTANTIATE_EVERY_PATH(ForwardProgramTest);

}  // namespace
}  // namespace otr
