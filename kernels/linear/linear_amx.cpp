// cpu-amx: out = x W^T (+ bias) (+ residual) with TDPBF16PS.
//
// Tiles and reduction order: kernels/amx/row_block.h, with the weight's tiles straight from the packed weight, over all steps
// of 32 inputs, the padding (zeros) included. Then bias, then residual. Where a sum waits in memory between two panels it does
// so as the float32 it was in its tile, so no bit depends on the panels.
//
// Few rows: the weight is read once, a block of 32 outputs at a time, fetched 3 KB ahead (of 1 to 4 KB and hints measured, that
// reaches the reads' own bandwidth at 1 to 16 rows: without 0.80 to 0.90 of it). Up to 16 rows take two blocks together: two
// streams of memory, and x comes from L2 half as often (2 to 12 % faster). Many rows: a task is up to 512 rows by 512
// outputs whose sums wait in the thread's scratch (1 MB, so in L2), while panels of 512 inputs go by: 32 outputs of the
// weight's panel (32 KB) lie in L1 for all rows of the task, x comes from L2 and does not stay in L1. Up to 64 rows it is x
// that stays, 16 KB of it in panels of 128 inputs, since the weight goes by but once (6 to 10 % faster). Roofline: up to 250
// rows are bound by memory, of whose bandwidth 32 rows reach 0.8 and 64 rows 0.72: fetches and the loads of x and of sums share
// the lines on their way to L1. Many rows: a product per tile load. With all operands in cache 0.65 of the products alone were
// measured, 0.8 of which is the clock: it falls where operands change with every product.
#include <cstring>

#include "kernels/amx/row_block.h"
#include "kernels/base/integers.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear_vec.h"
#include "kernels/simd/vec_avx512.h"

namespace otr {
namespace {

static_assert(kAmxBlockColumns == kLinearBlockN && kTileDepth == kLinearStepK);

constexpr int kPanelSteps = 16;  // of 32 inputs: the weight's 32 outputs of a panel take 32 KB
constexpr int kStaySteps = 4;    // likewise, where 64 rows of x of a panel stay there: 16 KB
constexpr int kMostRowBlocks = 16, kMostBlocks = 16;
constexpr int kStepLines = kAmxStepElements * static_cast<int>(sizeof(Element)) / 64;  // of the weight
static_assert(kMostRowBlocks * kMostBlocks * sizeof(AmxBlock) <= ThreadPool::kScratchBytes);

// The finished sums of up to 32 rows by 32 outputs.
struct FinishedBlock {
  const AmxBlock* sums = nullptr;
  int64_t row = 0, block = 0;
  int rows = 0;
};

OTR_INLINE void finish_rows(const LinearParams& p, const FinishedBlock& f, int begin, int end) {
  for (int r = begin; r < end && r < f.rows; ++r) {
    linear_finish(p, f.row + r, f.block, VecAvx512::load(f.sums->row[r]), VecAvx512::load(f.sums->row[r] + kLinearTileN));
  }
}

// ---- Few rows

constexpr int64_t kFetchAhead = 3072;      // bytes of the weight
constexpr int64_t kFetchAheadBoth = 4096;  // where there are more than 16 rows
constexpr int64_t kTaskBytes = 256 << 10;  // of the weight: longer streams gain nothing
constexpr int64_t kPairBytes = 512 << 10;  // of a block: of longer ones two are slower than one after the other

// Blocks [begin, end) of the weight for all rows: side by side in memory, so that what is fetched ahead runs on from one to the
// next. REQUIRES: tiles configured to the rows.
template <bool kBoth>
OTR_INLINE void multiply_blocks(const LinearParams& p, int64_t begin, int64_t end) {
  const int64_t steps = linear_padded(p.weight.in_features) / kLinearStepK;
  for (int64_t block = begin; block < end; ++block) {
    AmxBlock sums;
    amx_multiply_configured<kBoth, kBoth ? kFetchAheadBoth : kFetchAhead>(
        p.x, p.x_stride, p.weight.packed + block * steps * kAmxStepElements, steps, &sums);
    finish_rows(p, {&sums, 0, block, p.num_rows}, 0, kAmxBlockRows);
  }
}

// Two blocks together, for up to 16 rows.
void multiply_pair(const LinearParams& p, int64_t block) {
  const int64_t steps = linear_padded(p.weight.in_features) / kLinearStepK, elements = steps * kAmxStepElements;
  const Element* w = p.weight.packed + block * elements;
  AmxBlock sums[2];
  amx_configure_two_blocks(p.num_rows);
  amx_multiply_two_blocks<kFetchAhead>(p.x, p.x_stride, w, w + elements, steps, sums);
  for (int i = 0; i < 2; ++i) finish_rows(p, {&sums[i], 0, block + i, p.num_rows}, 0, kAmxBlockRows);
  tile_release();
}

void multiply_few(const LinearParams& p, ThreadPool& pool) {
  const int64_t blocks = divide_up(p.weight.out_features, kLinearBlockN);
  const int64_t block_bytes = linear_padded(p.weight.in_features) * kLinearBlockN * 2;
  // Two blocks a thread stay single, so that all threads end together.
  const bool in_pairs = p.num_rows <= kTileRows && block_bytes <= kPairBytes;
  const int pairs = in_pairs ? static_cast<int>(greater_of<int64_t>(0, blocks / 2 - pool.num_threads())) : 0;
  const int64_t singles = blocks - 2 * pairs;
  const int64_t most = greater_of<int64_t>(1, kTaskBytes / block_bytes),
                fair = greater_of<int64_t>(1, singles / (4 * pool.num_threads()));
  const int64_t size = smaller_of(most, fair);
  pool.parallel_for(pairs + divide_up(singles, size), [&](int task, int) {
    if (task < pairs) return multiply_pair(p, 2 * int64_t{task});
    const int64_t begin = 2 * int64_t{pairs} + (task - pairs) * size, end = smaller_of(blocks, begin + size);
    const bool both = p.num_rows > kTileRows;
    amx_configure_rows(both ? kTileRows : p.num_rows, both ? p.num_rows - kTileRows : kTileRows);
    if (both) multiply_blocks<true>(p, begin, end);
    else multiply_blocks<false>(p, begin, end);
    tile_release();
  });
}

// ---- Many rows

// Lines to bring near while a product runs: two beside each other, then `stride` bytes on.
struct Fetch {
  const char* at;
  int64_t stride;
};

template <bool kStays, int kTile>
OTR_INLINE void load_rows(const Element* x, int64_t row_bytes) {
  if constexpr (kStays) tile_load<kTile>(x, row_bytes);
  else tile_load_once<kTile>(x, row_bytes);
}

// sums (+)= x W^T over a panel of 32 rows by 32 outputs. kAhead: lines of the weight a step that are fetched for the next
// panel. beside(step): vector work for the ports that the products leave free. kStays: x is wanted again by the next block.
template <bool kStays, int kAhead, typename Beside>
OTR_INLINE void multiply_panel(const Element* x, int64_t x_stride, const Element* w, int steps, bool first, AmxBlock* sums,
                               Fetch next, const char* next_weight, const Beside& beside) {
  constexpr int64_t kStride = sizeof sums->row[0];
  const int64_t row_bytes = x_stride * 2;
  const Element* lower = x + kTileRows * x_stride;
  if (first) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  } else {
    tile_load<0>(&sums->row[0][0], kStride);
    tile_load<1>(&sums->row[0][kTileColumns], kStride);
    tile_load<2>(&sums->row[kTileRows][0], kStride);
    tile_load<3>(&sums->row[kTileRows][kTileColumns], kStride);
  }
  for (int step = 0; step < steps; ++step) {
    load_rows<kStays, 4>(x, row_bytes);
    tile_load<6>(w, kTileBytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(w + kAmxStepElements / 2, kTileBytes);
    tile_dot<1, 4, 7>();
    load_rows<kStays, 5>(lower, row_bytes);
    tile_dot<2, 5, 6>();
    tile_dot<3, 5, 7>();
    __builtin_prefetch(next.at, 1);
    __builtin_prefetch(next.at + 64, 1);
    __builtin_prefetch(next.at + next.stride, 1);
    __builtin_prefetch(next.at + next.stride + 64, 1);
#pragma GCC unroll 32
    for (int i = 0; i < kAhead; ++i) __builtin_prefetch(next_weight + 64 * i, 0, 2);
    x += kTileDepth;
    lower += kTileDepth;
    w += kAmxStepElements;
    next.at += 2 * next.stride;
    next_weight += 64 * kAhead;
    beside(step);
  }
  tile_store<0>(&sums->row[0][0], kStride);
  tile_store<1>(&sums->row[0][kTileColumns], kStride);
  tile_store<2>(&sums->row[kTileRows][0], kStride);
  tile_store<3>(&sums->row[kTileRows][kTileColumns], kStride);
}

// A panel of the last rows of a task, fewer than 32, with zeros for those that are not there: with the tiles configured to them
// at every block the whole product took up to 13 % longer.
struct LastRows {
  static constexpr int64_t kStride = linear_row_stride(kPanelSteps * kTileDepth);
  alignas(64) Element x[kAmxBlockRows * kStride];

  void fill(const Element* from, int64_t from_stride, int rows, int steps) {
    const size_t bytes = static_cast<size_t>(steps * kTileDepth) * sizeof *x;
    for (int r = 0; r < rows; ++r) std::memcpy(x + r * kStride, from + r * from_stride, bytes);
    std::memset(x + rows * kStride, 0, static_cast<size_t>((kAmxBlockRows - rows) * kStride) * sizeof *x);
  }
};

// Rows and blocks of outputs of a task.
struct ManyRows {
  int64_t first_row, first_block;
  int rows, blocks;
};

template <int kAhead, bool kStays = false>
void multiply_many(const LinearParams& p, const ManyRows& task, AmxBlock* sums) {
  const int64_t steps = linear_padded(p.weight.in_features) / kLinearStepK;
  const int panels = divide_up(steps, kStays ? kStaySteps : kPanelSteps);
  const int row_blocks = (task.rows + kAmxBlockRows - 1) / kAmxBlockRows;
  const int left = task.rows % kAmxBlockRows;
  LastRows last_rows;
  FinishedBlock finished;  // whose rows wait for the next block's products
  amx_configure_rows(kTileRows, kTileRows);
  for (int panel = 0; panel < panels; ++panel) {
    const int64_t begin = steps * panel / panels;
    const int panel_steps = static_cast<int>(steps * (panel + 1) / panels - begin);
    const bool first = panel == 0, last = panel == panels - 1;
    const int64_t last_row = task.first_row + task.rows - left;
    if (left > 0) last_rows.fill(p.x + last_row * p.x_stride + begin * kTileDepth, p.x_stride, left, panel_steps);
    for (int b = 0; b < task.blocks; ++b) {
      const int64_t block = task.first_block + b;
      const Element* w = p.weight.packed + (block * steps + begin) * kAmxStepElements;
      // The next block's panel, or after the last one the first block's next panel.
      const int64_t to_next = b + 1 < task.blocks ? steps : panel_steps - (task.blocks - 1) * steps;
      const char* next_weight = reinterpret_cast<const char*>(w + to_next * kAmxStepElements);
      for (int i = 0; i < row_blocks; ++i) {
        const int64_t row = task.first_row + i * kAmxBlockRows;
        const int rows = smaller_of(task.rows - i * kAmxBlockRows, kAmxBlockRows);
        const bool whole = rows == kAmxBlockRows;
        const Element* x = whole ? p.x + row * p.x_stride + begin * kTileDepth : last_rows.x;
        const int64_t x_stride = whole ? p.x_stride : LastRows::kStride;
        AmxBlock* block_sums = sums + b * row_blocks + i;
        Fetch next = {reinterpret_cast<const char*>(block_sums + 1), sizeof block_sums->row[0]};
        if (last && p.gated != nullptr) {
          next = {reinterpret_cast<const char*>(p.gated + row * p.gated_stride + block * kLinearTileN), 2 * p.gated_stride};
        } else if (last) {
          next = {reinterpret_cast<const char*>(p.out + row * p.out_stride + block * kLinearBlockN), 4 * p.out_stride};
        }
        const char* next_part = next_weight + i * panel_steps * kAhead * 64;
        if (last) {
          const int a_step = divide_up(finished.rows, panel_steps);
          multiply_panel<kStays, kAhead>(x, x_stride, w, panel_steps, first, block_sums, next, next_part,
                                         [&](int step) { finish_rows(p, finished, step * a_step, (step + 1) * a_step); });
        } else {
          multiply_panel<kStays, kAhead>(x, x_stride, w, panel_steps, first, block_sums, next, next_part, [](int) {});
        }
        if (last) finished = {block_sums, row, block, rows};
      }
    }
  }
  finish_rows(p, finished, 0, kAmxBlockRows);
  tile_release();
}

void multiply_many(const LinearParams& p, ThreadPool& pool) {
  const int blocks = divide_up(p.weight.out_features, kLinearBlockN), row_blocks = divide_up(p.num_rows, kAmxBlockRows);
  const int chunks = divide_up(row_blocks, kMostRowBlocks), chunk = divide_up(row_blocks, chunks);
  const int columns = amx_task_columns(blocks, kMostBlocks, chunks, pool.num_threads());
  pool.parallel_for(chunks * columns, [&](int task, int thread) {
    const int column = task % columns;
    const int64_t first_row = int64_t{task / columns} * chunk * kAmxBlockRows, first_block = int64_t{blocks} * column / columns;
    const int64_t rows = p.num_rows - first_row < chunk * kAmxBlockRows ? p.num_rows - first_row : chunk * kAmxBlockRows;
    const ManyRows many = {first_row, first_block, static_cast<int>(rows),
                           static_cast<int>(int64_t{blocks} * (column + 1) / columns - first_block)};
    AmxBlock* sums = static_cast<AmxBlock*>(pool.scratch(thread));
    // What each product of a step fetches of the weight's next panel, which the task's row blocks share.
    const int lines_per_step = divide_up(kStepLines, divide_up(rows, kAmxBlockRows));
    switch (lines_per_step) {
      case 2: return multiply_many<2>(p, many, sums);
      case 3: return multiply_many<3>(p, many, sums);
      case 4: return multiply_many<4>(p, many, sums);
      case 5: return multiply_many<5>(p, many, sums);
      case 6: return multiply_many<6>(p, many, sums);
      case 7: return multiply_many<7>(p, many, sums);
      case 8: return multiply_many<8>(p, many, sums);
      case 11: return multiply_many<11>(p, many, sums);
      // 16, of two row blocks: so few that x stays in L1 and the weight goes by. Or 32, of one, which the last chunk may be: it
      // does the same and fetches half of the panel.
      default: return multiply_many<16, true>(p, many, sums);
    }
  });
}

}  // namespace

void linear_amx(const LinearParams& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;  // a pass whose logits nobody wants
  if (p.num_rows <= kAmxBlockRows) multiply_few(p, pool);
  else multiply_many(p, pool);
}

}  // namespace otr
