// The pool of captured programs and the descriptors they read, on a device in host memory.
#include "graph/program_pool.h"

#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <string>
#include <vector>

#include "graph/device_rows.h"
#include "graph/row_batch_builder.h"
#include "kernels/page/page.h"
#include "tests/memory/fake_accelerator.h"

namespace otr {
namespace {

constexpr int32_t kRows = 40;
const std::vector<int32_t> kBuckets = {1, 2, 4, 8, 16, 32, 40};

class Pool : public testing::Test {
 protected:
  // A program whose launch adds `step` times its bucket to `sum_`.
  Result<ProgramPool::Entry> add(ProgramRole role, int64_t step, int32_t max_rows = kRows) {
    return pool_->add(role, max_rows, [this, step](int32_t bucket) {
      asked_.push_back(bucket);
      device_.ask([this, step, bucket] { sum_ += step * bucket; });
    });
  }
  int64_t run(const ProgramPool::Entry& program, int32_t rows) {
    sum_ = 0;
    program.launch(program.bucket_of(rows));
    EXPECT_TRUE(device_.wait().ok());
    return sum_;
  }

  FakeAccelerator device_{100 * FakeAccelerator::kCaptureBytes};
  std::optional<ProgramPool> pool_{std::in_place, &device_};
  std::vector<int32_t> asked_;
  int64_t sum_ = 0;
};

TEST_F(Pool, BucketsAreNarrowWhereRowsAreFewAndEndAtTheLimit) {
  EXPECT_EQ(ProgramPool::buckets(1), std::vector<int32_t>({1}));
  EXPECT_EQ(ProgramPool::buckets(kRows), kBuckets);
  EXPECT_EQ(ProgramPool::buckets(900), std::vector<int32_t>({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 900}));
}

TEST_F(Pool, EveryProgramIsCapturedLargestFirstBeforeAnythingRuns) {
  Result<ProgramPool::Entry> target = add(ProgramRole::kTarget, 1);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(asked_, std::vector<int32_t>(kBuckets.rbegin(), kBuckets.rend()));
  EXPECT_TRUE(device_.wait().ok());
  EXPECT_EQ(sum_, 0);
  for (const int32_t rows : {1, 2, 3, 8, 9, 31, 33, 40}) {
    int32_t bucket = 0;
    for (const int32_t b : kBuckets) {
      if (bucket == 0 && b >= rows) bucket = b;
    }
    EXPECT_EQ(run(target.value(), rows), bucket) << rows;
  }
  EXPECT_EQ(asked_.size(), kBuckets.size());  // nothing was captured again
}

TEST_F(Pool, BytesAreCountedByRole) {
  Result<ProgramPool::Entry> target = add(ProgramRole::kTarget, 1);
  const int64_t one = static_cast<int64_t>(kBuckets.size() * FakeAccelerator::kCaptureBytes);
  EXPECT_EQ(pool_->bytes(ProgramRole::kTarget), one);
  {
    Result<ProgramPool::Entry> self = add(ProgramRole::kDraft, 2), model = add(ProgramRole::kDraft, 3);
    EXPECT_EQ(pool_->bytes(ProgramRole::kTarget), one);
    EXPECT_EQ(pool_->bytes(ProgramRole::kDraft), 2 * one);
    EXPECT_EQ(pool_->num_captures(), static_cast<int32_t>(3 * kBuckets.size()));
    EXPECT_EQ(run(model.value(), 5), 24);
    EXPECT_GT(pool_->capture_seconds(), 0);
  }
  EXPECT_EQ(pool_->bytes(ProgramRole::kDraft), 0);
  EXPECT_EQ(device_.free_bytes(), 100 * FakeAccelerator::kCaptureBytes - static_cast<uint64_t>(one));
  EXPECT_EQ(run(target.value(), 5), 8);
}

TEST_F(Pool, MemoryIsGivenBackAndCapturedAgain) {
  Result<ProgramPool::Entry> target = add(ProgramRole::kTarget, 1), self = add(ProgramRole::kDraft, 2);
  pool_->release();
  EXPECT_EQ(device_.free_bytes(), 100 * FakeAccelerator::kCaptureBytes);
  EXPECT_EQ(pool_->num_captures(), 0);
  ASSERT_TRUE(pool_->capture().ok());
  EXPECT_EQ(run(target.value(), 3), 4);
  EXPECT_EQ(run(self.value(), 3), 8);
  EXPECT_EQ(pool_->num_captures(), static_cast<int32_t>(2 * kBuckets.size()));
}

TEST_F(Pool, WhatDoesNotFitIsRefusedAndLeavesNothing) {
  Result<ProgramPool::Entry> target = add(ProgramRole::kTarget, 1);
  const uint64_t room = 3 * FakeAccelerator::kCaptureBytes;
  void* others = device_.allocate(static_cast<size_t>(device_.free_bytes() - room));
  const Result<ProgramPool::Entry> self = add(ProgramRole::kDraft, 2);
  EXPECT_EQ(self.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(self.status().message(), "capturing a program of 8 rows: the fake device is full");
  EXPECT_EQ(device_.free_bytes(), room);
  EXPECT_EQ(run(target.value(), 9), 16);
  // After a sleep somebody else has the memory: nothing is captured, and later all.
  pool_->release();
  void* more = device_.allocate(device_.free_bytes() - room);
  EXPECT_EQ(pool_->capture().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(device_.free_bytes(), room);
  device_.release(more);
  ASSERT_TRUE(pool_->capture().ok());
  EXPECT_EQ(run(target.value(), 9), 16);
  device_.release(others);
}

// Memory for a launch's own lists may be lacking too: whole programs are captured, or none.
TEST_F(Pool, WhatThrowsLeavesNothing) {
  Result<ProgramPool::Entry> target = add(ProgramRole::kTarget, 1);
  const uint64_t room = device_.free_bytes();
  const auto third_fails = [n = 0](int32_t) mutable {
    if (++n == 3) throw std::bad_alloc();
  };
  EXPECT_THROW((void)pool_->add(ProgramRole::kDraft, kRows, third_fails), std::bad_alloc);
  EXPECT_EQ(device_.free_bytes(), room);
  EXPECT_EQ(pool_->num_captures(), static_cast<int32_t>(kBuckets.size()));
  EXPECT_EQ(run(target.value(), 9), 16);
  // The same after a sleep: those that are captured again stay, and the rest comes with the next try.
  int32_t calls = 0;
  const auto fails_later = [&calls](int32_t) {
    if (++calls == static_cast<int32_t>(kBuckets.size()) + 2) throw std::bad_alloc();
  };
  Result<ProgramPool::Entry> draft = pool_->add(ProgramRole::kDraft, kRows, fails_later);
  ASSERT_TRUE(draft.ok());
  pool_->release();
  EXPECT_THROW((void)pool_->capture(), std::bad_alloc);
  EXPECT_EQ(pool_->num_captures(), static_cast<int32_t>(kBuckets.size()));
  ASSERT_TRUE(pool_->capture().ok());
  EXPECT_EQ(pool_->num_captures(), static_cast<int32_t>(2 * kBuckets.size()));
}

// ---- Descriptors ---------------------------------------------------------------------------------------------------------

class Rows : public testing::Test {
 protected:
  static constexpr int32_t kMostCopies = 8;

  void fill(int32_t bucket) {
    ASSERT_TRUE(rows_.fill(builder_.batch(), bucket).ok());
    ASSERT_TRUE(device_.wait().ok());
  }
  // What a launch for the bucket finds of the batch, by segment: positions and pages.
  void expect_found(const RowBatch& found) const {
    const RowBatch batch = builder_.batch();
    for (int32_t r = 0; r < batch.num_rows; ++r) {
      EXPECT_EQ(found.token_ids[r], batch.token_ids[r]) << r;
      EXPECT_EQ(found.positions[r], batch.positions[r]) << r;
    }
    for (int32_t s = 0; s < batch.num_segments; ++s) {
      const RowSegment &a = batch.segments[s], &b = found.segments[s];
      EXPECT_EQ(a.first_row, b.first_row);
      const int32_t last = batch.positions[a.first_row + a.num_rows - 1];
      for (int32_t page = 0; page <= last / kPageTokens; ++page) {
        EXPECT_EQ(batch.page_tables[a.first_page + page], found.page_tables[b.first_page + page]) << s << ", " << page;
      }
    }
    EXPECT_EQ(*found.num_bundles_at, batch.num_bundles);
    for (int32_t t = 0; t < batch.num_tiles; ++t) EXPECT_EQ(found.tiles[t].num_rows, batch.tiles[t].num_rows);
    for (int32_t c = 0; c < batch.num_copies; ++c) EXPECT_EQ(found.copies[c].row, batch.copies[c].row);
  }

  FakeAccelerator device_{1 << 20};
  DeviceRows rows_ =
      std::move(DeviceRows::create(
                    {.max_rows = kRows, .max_logit_rows = kRows, .max_copies = kMostCopies, .max_page_entries = 64}, &device_)
                    .value());
  RowBatchBuilder builder_{
      {.max_rows = kRows, .max_segments = 8, .max_logit_rows = kRows, .max_pages_per_sequence = 8, .max_copies = kMostCopies},
      16};
};

TEST_F(Rows, ABatchIsOneCopyToAddressesThatStay) {
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9};
  const std::vector<PageId> pages = {3, 1, 2}, own = {9};
  const RowBatch captured = rows_.padded(8);
  builder_.add(tokens, 126, pages, 128);
  builder_.add_path(std::span(tokens).first(2), 130, std::span(pages).first(2), own);
  builder_.add_copy(4, 9);
  fill(8);
  EXPECT_EQ(device_.num_copies, 1);
  expect_found(captured);
  EXPECT_EQ(captured.copies[0].to, 9);
  EXPECT_EQ(rows_.logit_rows()[0], 2);
  builder_.clear();
  builder_.add(std::span(tokens).first(1), 70, std::span(pages).first(2), 70);
  fill(8);
  expect_found(captured);
}

// A captured launch has the bucket's grid: what the batch does not fill must do nothing, whatever the batch before was.
TEST_F(Rows, WhatPadsABucketTouchesNothing) {
  const std::vector<int32_t> tokens(8, 4);
  const std::vector<PageId> pages = {3, 1};
  builder_.add(tokens, 60, pages, 60);
  for (int32_t row = 0; row < kMostCopies; ++row) builder_.add_copy(row, 7);
  fill(8);
  builder_.clear();
  builder_.add(std::span(tokens).first(3), 5, pages, 5);
  fill(8);
  const RowBatch found = rows_.padded(8);
  EXPECT_EQ(found.num_rows, 8);
  for (int32_t r = 3; r < 8; ++r) EXPECT_EQ(found.positions[r], 0);
  for (int32_t t = 1; t < found.num_tiles; ++t) {
    EXPECT_EQ(found.tiles[t].num_rows, 0);
    EXPECT_EQ(found.bundles[t].num_tiles, 0);
  }
  for (int32_t c = 0; c < kKvCopyBlocks; ++c) EXPECT_EQ(found.copies[c].row, -1);  // as far as a block looks first
}

}  // namespace
}  // namespace otr
