// cpu-amx: out = x Wq^T (+ bias) (+ residual) with TDPBSSD, products of bytes summed as integers.
//
// x is rounded to bytes, group by group, and q - zero is one (w4_bytes_avx512.h). Expanding to bytes takes 5 operations and 2
// stores for 128 weights, to bf16 11 and 4, and half as many products add up 64 inputs each.
//
// Reduction order: groups ascending, sum = fma(scale of the weight * unit of x, float32(partial), sum); then bias, then
// residual. A row never sees another row.
//
// Tiles: 0 … 3 = C (rows 0-15 | 16-31 x outputs 0-15 | 16-31), 4 and 5 = x rows 0-15 and 16-31, 6 and 7 = the weight's outputs
// 0-15 and 16-31. Up to 16 rows meet two blocks of outputs: 2 and 3 = C of the second one, 5 and 6 = its weights.
//
// Up to 64 rows: x is rounded once, by all threads, and stays in L2; the weight is read once, a block of 32 outputs at a time,
// or two where 16 rows are enough: x comes from L2 half as often, and two streams of memory are read, a task's first half and
// its second. While a group is multiplied the next one is expanded, and the sums of the one before are scaled, which by then
// have left the store buffer; so it goes on from block to block. More rows, or inputs that do not fit: tasks of 64 rows by up
// to 32 blocks whose sums wait in the thread's scratch while panels of x go by. Roofline: memory for few rows; then the
// products, 8 a group for 32 rows, with their loads and stores.
#include "kernels/amx/row_block.h"
#include "kernels/base/integers.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear_w4/linear_w4_vec.h"
#include "kernels/linear_w4/w4_bytes_avx512.h"

namespace otr {
namespace {

static_assert(kAmxBlockColumns == kLinearBlockN && kW4GroupK == 2 * kW4ByteDepth);

// x of some rows and consecutive groups, rounded: row block after row block, each group after group.
struct RoundedX {
  W4BytesLayout layout;
  char* data;
  int rows, groups;

  int row_blocks() const { return divide_up(rows, kAmxBlockRows); }
  int rows_of(int row_block) const { return smaller_of(rows - row_block * kAmxBlockRows, kAmxBlockRows); }
  char* group(int row_block, int g) const { return data + (int64_t{row_block} * groups + g) * layout.group_bytes(); }
};

// Blocks of 32 rows, or one of as many as there are.
W4BytesLayout layout_of(int rows) { return {smaller_of(rows, kAmxBlockRows)}; }
int64_t rounded_bytes(int rows, int64_t groups) {
  return divide_up(rows, kAmxBlockRows) * groups * layout_of(rows).group_bytes();
}

// Groups [begin, end) of `to`; `x`: its first row, from its first group's inputs on, of which there are `inputs`.
void round_groups(const Element* x, int64_t x_stride, int64_t inputs, int begin, int end, const RoundedX& to) {
  for (int b = 0; b < to.row_blocks(); ++b) {
    for (int r = 0; r < to.rows_of(b); ++r) {
      const Element* row = x + (b * kAmxBlockRows + r) * x_stride;
      for (int g = begin; g < end; ++g) {
        const int64_t first = int64_t{g} * kW4GroupK;
        const int here = static_cast<int>(smaller_of<int64_t>(inputs - first, kW4GroupK));
        w4_store_group(w4_round_group(row + first, here), to.layout, r, to.group(b, g));
      }
    }
  }
}

// ---- Products of a row block

// kHalves: 2 where the row block has more than 16 rows, which then meet a block of 32 outputs; else 1, and they meet two.
constexpr int most_blocks(int halves) { return 2 / halves; }

// What a group's products came to. With two blocks of outputs, the second one's rows begin at 16.
struct Products {
  alignas(64) int32_t row[kAmxBlockRows][kLinearBlockN];
  const uint8_t* words[2];  // of each block
  float (*sums[2])[kLinearBlockN];
  const float* units;
  int rows;
};

template <int kHalves>
OTR_INLINE void add_scaled(const Products& p) {
  for (int block = 0; block < most_blocks(kHalves); ++block) {
    const __m512 scale[2] = {_mm512_load_ps(p.words[block]), _mm512_load_ps(p.words[block] + 64)};
    for (int r = 0; r < p.rows; ++r) {
      const __m512 unit = _mm512_set1_ps(p.units[r]);
#pragma GCC unroll 2
      for (int tile = 0; tile < 2; ++tile) {
        const __m512 partial = _mm512_cvtepi32_ps(_mm512_load_si512(p.row[block * kTileRows + r] + tile * kLinearTileN));
        float* sum = p.sums[block][r] + tile * kLinearTileN;
        _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_mul_ps(scale[tile], unit), partial, _mm512_load_ps(sum)));
      }
    }
  }
}

// One half of a group; w: of each block of outputs.
template <int kHalves>
OTR_INLINE void multiply_half(const int8_t* x, const W4Half* w) {
  tile_load<4>(x, kW4ByteDepth);
  tile_load<6>(w[0].row[0], kTileBytes);
  tile_dot_bytes<0, 4, 6>();
  tile_load<7>(w[0].row[1], kTileBytes);
  tile_dot_bytes<1, 4, 7>();
  if constexpr (kHalves == 2) {
    tile_load<5>(x + kTileRows * kW4ByteDepth, kW4ByteDepth);
    tile_dot_bytes<2, 5, 6>();
    tile_dot_bytes<3, 5, 7>();
  } else {
    tile_load<5>(w[1].row[0], kTileBytes);
    tile_dot_bytes<2, 4, 5>();
    tile_load<6>(w[1].row[1], kTileBytes);
    tile_dot_bytes<3, 4, 6>();
  }
}

OTR_INLINE void expand_half(const uint8_t* words, int pieces, int half, W4Half* out) {
  const __m512i zeros[2] = {w4_zeros(words), w4_zeros(words + 64)};
  const uint8_t* nibbles = words + kW4WordsBytes + half * kW4HalfBytes;
  const int left = pieces - half * kW4HalfPieces;
  if (left >= kW4HalfPieces) w4_expand_half<kW4HalfPieces>(nibbles, zeros, out);
  else if (left > 0) w4_expand_half<kW4HalfPieces / 2>(nibbles, zeros, out);
}

// Blocks of outputs side by side, from a group of theirs on. last_pieces: of the last group that x has.
struct Blocks {
  const uint8_t* words;
  int64_t block_bytes;
  int count, last_pieces;
};

// Adds what x's groups make of the blocks: block i's sums are begin(i, slot), and complete when end(i, slot) is called. Up to 4
// blocks are begun and not ended at a time, each with a slot (0 … 3) of its own. REQUIRES: tiles configured to x.
//
// A step is a block of each stream. Its products, one for each group and row block, are scaled one product late, and groups are
// expanded one group early, so the last scaling of a step falls beside the first product of the next one.
template <int kHalves, typename Begin, typename End>
void add_blocks(const RoundedX& x, const Blocks& blocks, const Begin& begin, const End& end) {
  constexpr int64_t kStride = kLinearBlockN * static_cast<int64_t>(sizeof(int32_t));
  constexpr int kStreams = most_blocks(kHalves);
  const int row_blocks = x.row_blocks(), steps = divide_up(blocks.count, kStreams);
  W4Half ring[2][2][kStreams] = {};  // [turn][half][stream]; what is beyond a weight's end is multiplied by zeros
  int turn = 0;                      // of the ring: where the group lies that is multiplied; the next one goes to the other
  Products products[2];
  int done = -1;  // which of them waits for its scaling; before the first product: none
  W4Sums nobodys;
  if (blocks.count % kStreams != 0) w4_clear<VecAvx512>(x.rows, &nobodys);
  W4Sums* sums[kStreams];
  // An odd number of blocks leaves the second stream without a last one: it repeats the first stream's.
  const auto exists = [&](int stream, int step) { return stream * steps + step < blocks.count; };
  const auto start_of = [&](int stream, int step) {
    return blocks.words + (exists(stream, step) ? stream * steps + step : step) * blocks.block_bytes;
  };
  const auto pieces_of = [&](int g) { return g + 1 < x.groups ? kW4GroupK / kW4PieceK : blocks.last_pieces; };
  const uint8_t *now[kStreams], *next[kStreams];  // the groups that are multiplied and expanded
  const auto expand = [&](int pieces, int half, int to) {
    for (int i = 0; i < kStreams; ++i) expand_half(next[i], pieces, half, &ring[to][half][i]);
  };
  // Two steps are begun and not ended at a time.
  const auto sums_slot = [](int stream, int step) { return step % 2 * 2 + stream; };
  const auto end_step = [&](int step) {
    for (int i = 0; i < kStreams; ++i) {
      if (exists(i, step)) end(i * steps + step, sums_slot(i, step));
    }
  };

  // Expand the first group.
  for (int i = 0; i < kStreams; ++i) next[i] = start_of(i, 0);
  for (int half = 0; half < 2; ++half) expand(pieces_of(0), half, 0);
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < kStreams; ++i) {
      sums[i] = exists(i, step) ? &begin(i * steps + step, sums_slot(i, step)) : &nobodys;
    }
    for (int g = 0; g < x.groups; ++g, turn ^= 1) {
      // Which group comes next: of this block, of the stream's next one, or, after the last, this one again.
      const bool whole = pieces_of(g) > kW4HalfPieces, last = g + 1 == x.groups;
      for (int i = 0; i < kStreams; ++i) {
        now[i] = next[i];
        next[i] = !last ? now[i] + kW4GroupBytes : step + 1 < steps ? start_of(i, step + 1) : now[i];
      }
      const int next_pieces = pieces_of(!last ? g + 1 : step + 1 < steps ? 0 : g);
      for (int b = 0; b < row_blocks; ++b) {
        // Multiply; beside a group's first product, expand the next group.
        char* const group = x.group(b, g);
        tile_zero<0>();
        tile_zero<1>();
        tile_zero<2>();
        tile_zero<3>();
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          if (b == 0) expand(next_pieces, half, turn ^ 1);
          if (half == 0 || whole) multiply_half<kHalves>(x.layout.half(group, half), ring[turn][half]);
        }
        // Store the products, with what scales them.
        const int current = (done + 1) % 2;
        Products& p = products[current];
        tile_store<0>(p.row[0], kStride);
        tile_store<1>(p.row[0] + kLinearTileN, kStride);
        tile_store<2>(p.row[kTileRows], kStride);
        tile_store<3>(p.row[kTileRows] + kLinearTileN, kStride);
        for (int i = 0; i < kStreams; ++i) {
          p.words[i] = now[i];
          p.sums[i] = sums[i]->row + b * kAmxBlockRows;
        }
        p.units = x.layout.units(group);
        p.rows = x.rows_of(b);
        // Scale the products before: after a step's first product that completes the step before.
        if (done >= 0) add_scaled<kHalves>(products[done]);
        done = current;
        if (step > 0 && g == 0 && b == 0) end_step(step - 1);
      }
    }
  }

  // Scale the last products.
  add_scaled<kHalves>(products[done]);
  end_step(steps - 1);
}

template <typename Begin, typename End>
void add_all_blocks(const RoundedX& x, const Blocks& blocks, const Begin& begin, const End& end) {
  if (x.layout.rows > kTileRows) {
    amx_configure_rows(kTileRows, x.layout.rows - kTileRows);
    add_blocks<2>(x, blocks, begin, end);
  } else {
    amx_configure_two_blocks(x.layout.rows);
    add_blocks<1>(x, blocks, begin, end);
  }
  tile_release();
}

void finish(const LinearParams& shape, int64_t first_row, int rows, int64_t block, const W4Sums& sums) {
  for (int r = 0; r < rows; ++r) {
    linear_finish(shape, first_row + r, block, VecAvx512::load(sums.row[r]), VecAvx512::load(sums.row[r] + kLinearTileN));
  }
}

// ---- Rows that all fit the scratch of one thread, where all read them

constexpr int64_t kTaskBytes = 512 << 10;  // of the weight, side by side

void multiply_few(const LinearW4Params& p, int groups, ThreadPool& pool) {
  const LinearParams shape = linear_shape(p);
  const RoundedX x = {layout_of(p.num_rows), static_cast<char*>(pool.scratch(0)), p.num_rows, groups};
  const int parts = w4_rounding_tasks(p.num_rows, groups, pool.num_threads());
  pool.parallel_for(parts, [&](int part, int) {
    round_groups(p.x, p.x_stride, linear_padded(p.weight.in_features), groups * part / parts, groups * (part + 1) / parts, x);
  });
  const int blocks = divide_up(p.weight.out_features, kLinearBlockN);
  const int64_t block_bytes = w4_cpu_block_bytes(p.weight.in_features);
  // Of pairs of blocks: long tasks, then for each thread one cut small, so that all end together; of few blocks one task a
  // thread.
  const int threads = pool.num_threads(), pairs = divide_up(blocks, 2);
  const int size = static_cast<int>(greater_of<int64_t>(kTaskBytes / (2 * block_bytes), 1));
  const bool many = pairs > 2 * size * threads;
  const int length = many ? size : divide_up(pairs, threads), piece = greater_of(length / 4, 1);
  const int num_long = many ? pairs / length - threads : divide_up(pairs, length),
            cut = greater_of(pairs - num_long * length, 0);
  pool.parallel_for(num_long + divide_up(cut, piece), [&](int task, int) {
    const int first = 2 * (task < num_long ? task * length : num_long * length + (task - num_long) * piece);
    const int here = smaller_of(blocks - first, 2 * (task < num_long ? length : piece));
    W4Sums sums[4];
    add_all_blocks(
        x, {p.weight.packed + first * block_bytes, block_bytes, here, w4_cpu_pieces(p.weight.in_features, groups - 1)},
        [&](int, int slot) -> W4Sums& {
          w4_clear<VecAvx512>(p.num_rows, &sums[slot]);
          return sums[slot];
        },
        [&](int i, int slot) { finish(shape, 0, p.num_rows, first + i, sums[slot]); });
  });
}

// ---- More rows

constexpr int kMostBlocks = 32;
constexpr size_t kSumsBytes = kMostBlocks * sizeof(W4Sums);
static_assert(kSumsBytes <= ThreadPool::kScratchBytes / 2);

void multiply_many(const LinearW4Params& p, int groups, ThreadPool& pool) {
  const LinearParams shape = linear_shape(p);
  const int64_t k = p.weight.in_features, block_bytes = w4_cpu_block_bytes(k);
  const int blocks = divide_up(p.weight.out_features, kLinearBlockN), chunks = divide_up(p.num_rows, kW4TaskRows);
  const int most_groups =
      static_cast<int>(static_cast<int64_t>(ThreadPool::kScratchBytes - kSumsBytes) / rounded_bytes(kW4TaskRows, 1));
  const int panels = divide_up(groups, most_groups);
  const int columns = amx_task_columns(blocks, kMostBlocks, chunks, pool.num_threads());
  pool.parallel_for(chunks * columns, [&](int task, int thread) {
    const int first_row = task / columns * kW4TaskRows, rows = smaller_of(p.num_rows - first_row, kW4TaskRows);
    const int column = task % columns, first_block = blocks * column / columns, end_block = blocks * (column + 1) / columns;
    W4Sums* const sums = static_cast<W4Sums*>(pool.scratch(thread));
    char* const rounded = static_cast<char*>(pool.scratch(thread)) + kSumsBytes;
    for (int panel = 0; panel < panels; ++panel) {
      const int begin = groups * panel / panels, end = groups * (panel + 1) / panels;
      const RoundedX x = {layout_of(rows), rounded, rows, end - begin};
      const int64_t first_input = int64_t{begin} * kW4GroupK;
      round_groups(p.x + first_row * p.x_stride + first_input, p.x_stride, linear_padded(k) - first_input, 0, x.groups, x);
      add_all_blocks(
          x,
          {p.weight.packed + first_block * block_bytes + begin * kW4GroupBytes, block_bytes, end_block - first_block,
           w4_cpu_pieces(k, end - 1)},
          [&](int i, int) -> W4Sums& {
            if (panel == 0) w4_clear<VecAvx512>(rows, sums + i);
            return sums[i];
          },
          [&](int i, int) {
            if (panel + 1 == panels) finish(shape, first_row, rows, first_block + i, sums[i]);
          });
    }
  });
}

}  // namespace

void linear_w4_amx(const LinearW4Params& p, ThreadPool& pool) {
  if (p.num_rows == 0) return;
  const int groups = static_cast<int>(w4_cpu_groups(p.weight.in_features));
  const bool fits =
      p.num_rows <= kW4TaskRows && rounded_bytes(p.num_rows, groups) <= static_cast<int64_t>(ThreadPool::kScratchBytes);
  if (fits) multiply_few(p, groups, pool);
  else multiply_many(p, groups, pool);
}

}  // namespace otr
