#include "memory/draft_paths.h"

#include <gtest/gtest.h>

#include <vector>

namespace otr {
namespace {

class DraftPathsTest : public testing::Test {
 protected:
  DraftPathsTest() { table_.prepare_write(&cache_, &pool_, 0, 70, &work_); }
  ~DraftPathsTest() override { table_.release_all(&pool_); }

  PagePool pool_{8};
  PrefixCache cache_{&pool_};
  PageWork work_;
  PageTable table_;  // 2 pages
  DraftPaths paths_{4, 8};
};

TEST_F(DraftPathsTest, APathBeginsAsACopyOfTheSequencesPage) {
  work_.clear();
  const int32_t path = paths_.add(table_, DraftPaths::kNoPath, 70, 70, 75, &cache_, &work_);
  ASSERT_EQ(path, 0);
  ASSERT_EQ(paths_.pages(path).size(), 1u);
  EXPECT_EQ(work_.copy_from, (std::vector<PageId>{table_.pages()[1]}));
  EXPECT_EQ(work_.copy_to, (std::vector<PageId>{paths_.pages(path)[0]}));
  EXPECT_TRUE(work_.zero.empty());
  EXPECT_EQ(pool_.num_in_use(), 3);
  paths_.clear(&pool_);
  EXPECT_EQ(pool_.num_in_use(), 2);
}

TEST_F(DraftPathsTest, APathMayCrossIntoANewPage) {
  work_.clear();
  const int32_t path = paths_.add(table_, DraftPaths::kNoPath, 126, 126, 130, &cache_, &work_);
  ASSERT_EQ(paths_.pages(path).size(), 2u);
  EXPECT_EQ(work_.copy_to.size(), 1u);
  EXPECT_EQ(work_.zero, (std::vector<PageId>{paths_.pages(path)[1]}));
  paths_.clear(&pool_);
}

TEST_F(DraftPathsTest, APathMayBranchOffAnother) {
  const int32_t path = paths_.add(table_, DraftPaths::kNoPath, 126, 126, 134, &cache_, &work_);
  work_.clear();
  const int32_t early = paths_.add(table_, path, 126, 127, 134, &cache_, &work_);  // nothing is on its second page yet
  EXPECT_EQ(work_.copy_from, (std::vector<PageId>{paths_.pages(path)[0]}));
  EXPECT_EQ(work_.zero, (std::vector<PageId>{paths_.pages(early)[1]}));
  work_.clear();
  const int32_t late = paths_.add(table_, path, 126, 130, 134, &cache_, &work_);
  EXPECT_EQ(work_.copy_from, (std::vector<PageId>{paths_.pages(path)[0], paths_.pages(path)[1]}));
  EXPECT_EQ(work_.copy_to, (std::vector<PageId>{paths_.pages(late)[0], paths_.pages(late)[1]}));
  EXPECT_TRUE(work_.zero.empty());
  paths_.clear(&pool_);
}

TEST_F(DraftPathsTest, AtAPageBorderNothingIsCopied) {
  work_.clear();
  const int32_t path = paths_.add(table_, DraftPaths::kNoPath, 128, 128, 130, &cache_, &work_);
  ASSERT_EQ(paths_.pages(path).size(), 1u);
  EXPECT_TRUE(work_.copy_to.empty());
  EXPECT_EQ(work_.zero.size(), 1u);
  paths_.keep(path, &table_, &pool_);
  EXPECT_EQ(table_.num_pages(), 3);
  paths_.clear(&pool_);
  EXPECT_EQ(pool_.num_in_use(), 3);
}

TEST_F(DraftPathsTest, KeepingAPathReplacesTheSequencesPages) {
  const PageId first = table_.pages()[0], second = table_.pages()[1];
  paths_.add(table_, DraftPaths::kNoPath, 70, 70, 75, &cache_, &work_);
  const int32_t path = paths_.add(table_, DraftPaths::kNoPath, 70, 70, 75, &cache_, &work_);
  const PageId own = paths_.pages(path)[0];
  EXPECT_EQ(pool_.num_in_use(), 4);
  paths_.keep(path, &table_, &pool_);
  paths_.clear(&pool_);
  EXPECT_EQ(table_.pages(), (std::vector<PageId>{first, own}));
  EXPECT_EQ(pool_.num_in_use(), 2);
  EXPECT_EQ(pool_.refcount(second), 0);
  EXPECT_TRUE(pool_
                  .check([&] {
                    std::vector<int32_t> references(8, 0);
                    references[static_cast<size_t>(first)] = references[static_cast<size_t>(own)] = 1;
                    return references;
                  }())
                  .ok());
}

TEST_F(DraftPathsTest, WithoutFreePagesThereIsNoPath) {
  PageTable rest;
  rest.prepare_write(&cache_, &pool_, 0, 6 * 64 - 64, &work_);
  work_.clear();
  EXPECT_EQ(paths_.add(table_, DraftPaths::kNoPath, 126, 126, 130, &cache_, &work_),
            DraftPaths::kNoPath);  // two are needed, one is there
  EXPECT_TRUE(work_.copy_to.empty() && work_.zero.empty());
  EXPECT_NE(paths_.add(table_, DraftPaths::kNoPath, 70, 70, 75, &cache_, &work_), DraftPaths::kNoPath);
  EXPECT_EQ(paths_.add(table_, DraftPaths::kNoPath, 70, 70, 75, &cache_, &work_), DraftPaths::kNoPath);
  paths_.clear(&pool_);
  EXPECT_EQ(pool_.num_free(), 1);
  rest.release_all(&pool_);
}

// Pages that only the cache still holds are to be had.
TEST_F(DraftPathsTest, APathMayEvictCachedPages) {
  PageTable rest;
  rest.prepare_write(&cache_, &pool_, 0, 6 * 64, &work_);
  cache_.insert(std::vector<int32_t>(6 * 64, 7), rest.pages(), 6);
  EXPECT_EQ(paths_.add(table_, DraftPaths::kNoPath, 126, 126, 130, &cache_, &work_), DraftPaths::kNoPath);
  rest.release_all(&pool_);
  EXPECT_EQ(pool_.num_free(), 0);
  EXPECT_NE(paths_.add(table_, DraftPaths::kNoPath, 126, 126, 130, &cache_, &work_), DraftPaths::kNoPath);
  EXPECT_EQ(pool_.num_evictable(), 4);
  paths_.clear(&pool_);
  EXPECT_EQ(pool_.num_free(), 2);
  EXPECT_TRUE(cache_.check().ok());
}

}  // namespace
}  // namespace otr
