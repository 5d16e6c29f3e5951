// DeviceRows: the descriptors of the rows to run, at addresses of a device that never change, so that one captured program
// serves every batch which fits its bucket.
//
// What varies from batch to batch is the arrays' content alone: the counts that a launch takes its grid from are the bucket's.
// Rows beyond the batch's are token 0 at position 0, their tiles and bundles are empty, and copies end with entries of row -1;
// so such rows compute something that nobody reads, and write no page. One copy carries a batch down: page tables end where the
// fixed part begins, which the copies, seldom any, follow.
//
// Errors: create() gives kOutOfMemory; fill() as Accelerator::wait. Thread safety: one thread at a time.
#pragma once

#include "kernels/base/row_batch.h"
#include "memory/mirror.h"

namespace otr {

struct DeviceRowLimits {
  int32_t max_rows;
  int32_t max_logit_rows;
  int32_t max_copies;
  int64_t max_page_entries;   // of all segments' tables together
  int32_t max_under_way = 1;  // batches that fill() sends down before it waits for the device, as far as the host's memory goes
};

class DeviceRows {
 public:
  static Result<DeviceRows> create(const DeviceRowLimits& limits, Accelerator* accelerator);

  // Sends a batch down, as `bucket` rows. REQUIRES: within the limits; batch.num_rows <= bucket.
  Status fill(const RowBatch& batch, int32_t bucket);
  // What a program for `bucket` rows is captured with: the same for every batch.
  RowBatch padded(int32_t bucket) const;
  int32_t* token_ids() const {
    return mirror_.device<int32_t>(token_ids_);
  }  // of the last batch, for what sets them on the device
  // Rows whose logits the last batch wants.
  const int32_t* logit_rows() const { return mirror_.device<int32_t>(logit_rows_); }

 private:
  void fill_rows(const RowBatch& batch, int32_t bucket);
  int64_t fill_pages(const RowBatch& batch);

  DeviceRowLimits limits_ = {};
  Mirror mirror_;
  int64_t page_tables_ = 0, token_ids_ = 0, positions_ = 0, logit_rows_ = 0, segments_ = 0, tiles_ = 0, bundles_ = 0,
          num_bundles_ = 0, num_rows_ = 0, copies_ = 0;
};

}  // namespace otr
