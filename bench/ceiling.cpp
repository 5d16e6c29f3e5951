#include "bench/ceiling.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#if !defined(OUTRIDER_SOFT_TILES)
#include "kernels/amx/tile.h"
#endif

namespace otr::bench {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;
constexpr int64_t kPieces = kRotationBytes / kPieceBytes;
constexpr int kRounds = 512;  // of a matrix task: 2 to 10 microseconds

// ---- Reads: one piece, eight independent sums -------------------------------------------------------------------------

__attribute__((target("avx512f"))) uint64_t read_avx512(const void* data) {
  const char* p = static_cast<const char*>(data);
  __m512i sum[8] = {};
  for (int64_t i = 0; i < kPieceBytes; i += 512) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm512_xor_si512(sum[j], _mm512_load_si512(p + i + 64 * j));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm512_xor_si512(sum[0], sum[j]);
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, sum[0]);
  return lanes[0] ^ lanes[3] ^ lanes[7];
}

__attribute__((target("avx2"))) uint64_t read_avx2(const void* data) {
  const __m256i* p = static_cast<const __m256i*>(data);
  __m256i sum[8] = {};
  for (int64_t i = 0; i < kPieceBytes / 32; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256(p + i + j));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_xor_si256(sum[0], sum[j]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sum[0], 0)) ^ static_cast<uint64_t>(_mm256_extract_epi64(sum[0], 3));
}

uint64_t read_scalar(const void* data) {
  const __m128i* p = static_cast<const __m128i*>(data);
  __m128i sum[8] = {};
  for (int64_t i = 0; i < kPieceBytes / 16; i += 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm_xor_si128(sum[j], _mm_load_si128(p + i + j));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm_xor_si128(sum[0], sum[j]);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(sum[0]));
}

// ---- Products on registers: enough independent chains to hide the latency, operands that the compiler cannot fold

#if !defined(OUTRIDER_SOFT_TILES)
template <bool kBytes>
double matrix_amx(const Element* data, int rounds) {
  tile_configure(full_tiles());
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  tile_load<4>(data, kTileBytes);
  tile_load<5>(data + 512, kTileBytes);
  tile_load<6>(data + 1024, kTileBytes);
  tile_load<7>(data + 1536, kTileBytes);
  for (int i = 0; i < rounds; ++i) {
    if constexpr (kBytes) {
      tile_dot_bytes<0, 4, 6>();
      tile_dot_bytes<1, 4, 7>();
      tile_dot_bytes<2, 5, 6>();
      tile_dot_bytes<3, 5, 7>();
    } else {
      tile_dot<0, 4, 6>();
      tile_dot<1, 4, 7>();
      tile_dot<2, 5, 6>();
      tile_dot<3, 5, 7>();
    }
  }
  tile_release();
  return rounds * 4.0 * 2 * kTileRows * kTileColumns * (kBytes ? kTileBytes : kTileDepth);
}
#endif

__attribute__((target("avx512f,avx512bf16"))) double matrix_avx512(const Element* data, int rounds) {
  constexpr int kChains = 24;  // as many as the tile of linear has
  __m512 sum[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_setzero_ps();
  __m512i a = _mm512_load_si512(data), b = _mm512_load_si512(data + 32);
  for (int i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) {
      sum[c] = _mm512_dpbf16_ps(sum[c], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "+v"(sum[c]));
  }
  return rounds * kChains * 64.0;
}

__attribute__((target("avx512f,avx512vnni"))) double byte_matrix_avx512(const Element* data, int rounds) {
  constexpr int kChains = 24;
  __m512i sum[kChains];
#pragma GCC unroll 24
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_setzero_si512();
  __m512i a = _mm512_load_si512(data), b = _mm512_load_si512(data + 32);
  for (int i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_dpbusd_epi32(sum[c], a, b);
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "+v"(sum[c]));
  }
  return rounds * kChains * 128.0;
}

__attribute__((target("avx2,fma"))) double matrix_avx2(const Element* data, int rounds) {
  constexpr int kChains = 12;
  __m256 sum[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) sum[c] = _mm256_setzero_ps();
  __m256 a = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(data)));
  __m256 b = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(data + 16)));
  for (int i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm256_fmadd_ps(a, b, sum[c]);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "+x"(sum[c]));
  }
  return rounds * kChains * 16.0;
}

__attribute__((target("avx2"))) double byte_matrix_avx2(const Element* data, int rounds) {
  constexpr int kChains = 12;
  __m256i sum[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) sum[c] = _mm256_setzero_si256();
  __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(data));
  __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(data + 16));
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      __asm__ volatile("" : "+x"(a), "+x"(b));  // each product anew
      sum[c] = _mm256_add_epi16(sum[c], _mm256_maddubs_epi16(a, b));
    }
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "+x"(sum[c]));
  }
  return rounds * kChains * 64.0;
}

double matrix_scalar(const Element* data, int rounds) {
  constexpr int kChains = 12;
  __m128 sum[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) sum[c] = _mm_setzero_ps();
  __m128 a = _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(data)));
  __m128 b = _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(data + 8)));
  for (int i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm_add_ps(_mm_mul_ps(a, b), sum[c]);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "+x"(sum[c]));
  }
  return rounds * kChains * 8.0;
}

}  // namespace

Ceiling::Ceiling(const KernelTable& kernels, ThreadPool& pool, RandomArena& arena) : pool_(pool), arena_(arena) {
  const std::string_view path = kernels.path;
  if (path == "cpu-scalar") {
    matrix_ = byte_matrix_ = matrix_scalar;
    read_ = read_scalar;
  } else if (path == "cpu-avx2") {
    matrix_ = matrix_avx2;
    byte_matrix_ = byte_matrix_avx2;
    read_ = read_avx2;
  } else {
    matrix_ = matrix_avx512;
    byte_matrix_ = byte_matrix_avx512;
    read_ = read_avx512;
  }
#if !defined(OUTRIDER_SOFT_TILES)
  if (path == "cpu-amx") {
    matrix_ = matrix_amx<false>;
    byte_matrix_ = matrix_amx<true>;
  }
#endif
}

const char* Ceiling::memory() {
  if (memory_.size() == 0) {
    Result<Buffer<char>> memory = Buffer<char>::create(kRotationBytes, "memory of the ceilings");
    if (!memory.ok()) throw std::bad_alloc();
    memory_ = std::move(memory.value());
    const char* random = reinterpret_cast<const char*>(arena_.elements(kPieceBytes));
    pool_.parallel_for(static_cast<int>(kPieces), [&](int piece, int) {  // no two pieces are equal
      std::memcpy(memory_.data() + piece * kPieceBytes, random + piece * 64, kPieceBytes);
    });
  }
  return memory_.data();
}

void Ceiling::run(Bound bound, int tasks) {
  const bool multiplies = bound == Bound::kMatrix || bound == Bound::kByteMatrix;
  const Element* operands = multiplies ? arena_.elements(4096) : nullptr;
  char* from = memory_.data();
  const int64_t pieces = bound == Bound::kCopy ? kPieces / 2 : kPieces, first = next_piece_ % pieces;
  next_piece_ = (first + tasks) % pieces;
  pool_.parallel_for(tasks, [&](int task, int) {
    const int64_t at = (first + task) % pieces * kPieceBytes;
    switch (bound) {
      case Bound::kRead: sink_.fetch_xor(read_(from + at), std::memory_order_relaxed); break;
      case Bound::kCopy: std::memcpy(from + pieces * kPieceBytes + at, from + at, kPieceBytes); break;
      case Bound::kWrite: std::memset(from + at, task & 1, kPieceBytes); break;
      case Bound::kMatrix:
      case Bound::kByteMatrix: products(bound)(operands, kRounds);
    }
  });
}

Ceiling::Rate Ceiling::measure(Bound bound, double seconds, const ThreadClocks& threads) {
  const bool multiplies = bound == Bound::kMatrix || bound == Bound::kByteMatrix;
  const double task = multiplies              ? products(bound)(arena_.elements(4096), 1) * kRounds
                      : bound == Bound::kCopy ? 2.0 * kPieceBytes
                                              : 1.0 * kPieceBytes;
  double& last = rate_[static_cast<int>(bound)];
  const int tasks = static_cast<int>(std::clamp(std::ceil(last * seconds / task), 1.0, 1e6));
  if (!multiplies) memory();
  SliceClock clock(threads);
  clock.start();
  run(bound, tasks);
  const SliceClock::Slice slice = clock.stop();
  last = tasks * task / slice.seconds;
  return {last, slice.share};
}

}  // namespace otr::bench
