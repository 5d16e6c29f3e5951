// kernels/ptx on the emulated device: every function of the same name and meaning, from the instruction set's definition.
#pragma once

#include "tests/cuda/emulator.h"
// (the emulator's words come first)
#include <cuda.h>

#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/layouts/tensor_box.h"
#include "tests/kernels/sm90_model.h"

namespace otr::ptx {

inline uint32_t shared_address(const void* p) { return emulator::address_of(p); }

// ---- mbarrier ---------------------------------------------------------------------------------------------------------------

struct Mbarrier {
  uint16_t count;
  int16_t pending;
  int32_t bytes_and_phase;  // bytes outstanding * 2 + phase
};
static_assert(sizeof(Mbarrier) == 8);

inline void mbarrier_settle(Mbarrier* b) {
  if (b->pending < 0) emulator::fail("an arrival too many");
  if (b->pending == 0 && b->bytes_and_phase >> 1 == 0) b->pending = static_cast<int16_t>(b->count), b->bytes_and_phase ^= 1;
}
inline void mbarrier_update(Mbarrier* b, int arrivals, int bytes) {
  b->pending = static_cast<int16_t>(b->pending - arrivals);
  b->bytes_and_phase += bytes * 2;
  mbarrier_settle(b);
}
inline Mbarrier* mbarrier_at(uint64_t* b) {
  return reinterpret_cast<Mbarrier*>(emulator::shared_at(shared_address(b), emulator::place().cluster_rank));
}
inline Mbarrier* mbarrier_at(uint32_t remote) {
  return reinterpret_cast<Mbarrier*>(emulator::shared_at(remote & 0xfffff, remote >> 20));
}

// What has become of the cluster's barriers, by shared::cluster address.
struct BarrierFacts {
  std::map<uint32_t, const void*> unfenced;  // by whom they were initialised, who owes a fence
  std::set<uint32_t> stored_to;              // count bytes of other blocks' st_async
};
BarrierFacts& barrier_facts();  // of this cluster
int* arrivals_under_way();      // of this thread, at other blocks' barriers

inline uint32_t mbarrier_name(uint64_t* b) { return shared_address(b) | emulator::place().cluster_rank << 20; }
inline Mbarrier* fenced_mbarrier(uint32_t remote) {
  if (barrier_facts().unfenced.contains(remote)) emulator::fail("an mbarrier that no fence has made visible");
  return mbarrier_at(remote);
}

inline void mbarrier_init(uint64_t* b, uint32_t count) {
  *mbarrier_at(b) = {static_cast<uint16_t>(count), static_cast<int16_t>(count), 0};
  barrier_facts().unfenced[mbarrier_name(b)] = &emulator::place();
}
inline void fence_mbarrier_init() {
  std::erase_if(barrier_facts().unfenced, [](const auto& made) { return made.second == &emulator::place(); });
}
inline void fence_async_shared() { emulator::fence_async(); }
inline void mbarrier_arrive(uint64_t* b) { mbarrier_update(mbarrier_at(b), 1, 0); }
inline void mbarrier_arrive_remote(uint32_t b) {
  Mbarrier* at = fenced_mbarrier(b);
  int* under_way = arrivals_under_way();
  ++*under_way;
  emulator::later([=] {
    mbarrier_update(at, 1, 0);
    --*under_way;
  });
}
inline void mbarrier_arrive_expect_tx(uint64_t* b, uint32_t bytes) {
  mbarrier_update(mbarrier_at(b), 1, static_cast<int>(bytes));
}
inline void mbarrier_wait_cluster(uint64_t* b, uint32_t parity) {
  const Mbarrier* at = mbarrier_at(b);
  emulator::wait_until([at, parity] { return (static_cast<uint32_t>(at->bytes_and_phase) & 1) != parity; }, "mbarrier",
                       shared_address(b));
}
inline void mbarrier_wait(uint64_t* b, uint32_t parity) {
  if (barrier_facts().stored_to.contains(mbarrier_name(b)))
    emulator::fail("a wait that does not see what other blocks have stored");
  mbarrier_wait_cluster(b, parity);
}

// ---- Clusters, registers, barriers
// --------------------------------------------------------------------------------------------

uint32_t cluster_size();
inline uint32_t cluster_rank() { return emulator::place().cluster_rank; }
inline void cluster_arrive() {
  emulator::wait_until([under_way = arrivals_under_way()] { return *under_way == 0; }, "its arrivals", 0);
}
inline void cluster_arrive_relaxed() {}
inline void cluster_wait() { emulator::barrier(16, emulator::threads_of_block() * cluster_size()); }
inline uint32_t mapa(uint32_t local, uint32_t rank) { return local | rank << 20; }
inline void st_async(uint32_t remote, float a, float b, float c, float d, uint32_t barrier) {
  uint8_t* to = emulator::shared_at(remote & 0xfffff, remote >> 20);
  Mbarrier* at = fenced_mbarrier(barrier);
  if (barrier >> 20 != cluster_rank()) barrier_facts().stored_to.insert(barrier);
  emulator::later([=] {
    const float values[4] = {a, b, c, d};
    std::memcpy(to, values, 16);
    mbarrier_update(at, 0, -16);
  });
}
inline float4 load_remote(uint32_t remote) {
  float4 v;
  std::memcpy(&v, emulator::shared_at(remote & 0xfffff, remote >> 20), 16);
  return v;
}
template <int kNumber>
void named_barrier(int threads) {
  emulator::barrier(kNumber, static_cast<unsigned>(threads));
}
inline uint32_t pack_bf16(float low, float high) {
  return bf16_from_float(low).bits | static_cast<uint32_t>(bf16_from_float(high).bits) << 16;
}
template <int kRegisters>
void setmaxnreg_inc() {}
template <int kRegisters>
void setmaxnreg_dec() {}

// ---- The copy engine
// ----------------------------------------------------------------------------------------------------------

struct EmulatedMap {
  const Element* base;
  TensorBox box;
};
static_assert(sizeof(EmulatedMap) <= sizeof(CUtensorMap));

inline Status make_tensor_map(const void* base, const TensorBox& box, CUtensorMap* map) {
  if (const char* why = tensor_box_error(box, reinterpret_cast<uintptr_t>(base))) return invalid_argument(why);
  const EmulatedMap made = {static_cast<const Element*>(base), box};
  std::memcpy(map, &made, sizeof made);
  return {};
}
inline void prefetch_tensor_map(const CUtensorMap*) {}
inline uint64_t l2_evict_first() { return 1; }
inline uint64_t l2_evict_last() { return 2; }
inline uint64_t l2_evict_normal() { return 3; }

inline void tma_load(void* shared, const CUtensorMap* map, std::vector<int64_t> at, uint64_t* barrier, uint32_t mask) {
  EmulatedMap tensor;
  std::memcpy(static_cast<void*>(&tensor), map, sizeof tensor);
  const uint32_t to = shared_address(shared), full = shared_address(barrier);
  if (to % (tensor.box.swizzled ? 1024 : 128) != 0)
    emulator::fail("a box at an address that is no multiple of 1,024 (unswizzled: 128)");
  for (uint32_t rank = 0; rank < 8; ++rank) {
    if ((mask >> rank & 1) != 0) fenced_mbarrier(full | rank << 20);
  }
  emulator::later([=] {
    std::vector<uint8_t> box(tensor.box.bytes());
    testing_util::model_tma(tensor.base, tensor.box, at.data(), &box, 0);
    for (uint32_t rank = 0; rank < 8; ++rank) {
      if ((mask >> rank & 1) == 0) continue;
      emulator::shared_at(to + static_cast<uint32_t>(box.size()) - 1, rank);  // inside
      std::memcpy(emulator::shared_at(to, rank), box.data(), box.size());
      std::memcpy(emulator::seen_at(to, rank), box.data(), box.size());
      mbarrier_update(mbarrier_at(full | rank << 20), 0, -static_cast<int>(box.size()));
    }
  });
}
inline void bulk_load(void* shared, const void* from, uint32_t bytes, uint64_t* barrier, uint64_t) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || shared_address(shared) % 16 != 0 || bytes % 16 != 0)
    emulator::fail("bytes that are not aligned to 16");
  const uint32_t rank = cluster_rank();
  uint8_t *to = emulator::shared_at(shared_address(shared), rank), *seen = emulator::seen_at(shared_address(shared), rank);
  emulator::shared_at(shared_address(shared) + bytes - 1, rank);  // inside
  Mbarrier* at = fenced_mbarrier(mbarrier_name(barrier));
  emulator::later([=] {
    std::memcpy(to, from, bytes);
    std::memcpy(seen, from, bytes);
    mbarrier_update(at, 0, -static_cast<int>(bytes));
  });
}
// Launches come one after the other here.
inline void grid_wait() {}
inline void grid_let_next() {}
inline void tma_prefetch_2d(const CUtensorMap*, int32_t, int32_t) {}
inline void tma_prefetch_4d(const CUtensorMap*, int32_t, int32_t, int32_t, int32_t) {}
inline void tma_load_2d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, uint64_t* barrier, uint64_t) {
  tma_load(shared, map, {c0, c1}, barrier, 1u << cluster_rank());
}
inline void tma_load_4d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, int32_t c3, uint64_t* barrier,
                        uint64_t) {
  tma_load(shared, map, {c0, c1, c2, c3}, barrier, 1u << cluster_rank());
}
inline void tma_load_3d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, uint64_t* barrier, uint64_t) {
  tma_load(shared, map, {c0, c1, c2}, barrier, 1u << cluster_rank());
}
inline void tma_load_5d(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                        uint64_t* barrier, uint64_t) {
  tma_load(shared, map, {c0, c1, c2, c3, c4}, barrier, 1u << cluster_rank());
}
inline void tma_load_2d_multicast(void* shared, const CUtensorMap* map, int32_t c0, int32_t c1, uint64_t* barrier,
                                  uint16_t mask, uint64_t) {
  tma_load(shared, map, {c0, c1}, barrier, mask);
}

// ---- mma, from the places that the instruction set gives the registers of a warp
// -------------------------------------------------

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  uint32_t all[32][6];
  emulator::exchange_all(mine, all);
  // Element `k` of row g + 8 h of A or, h = 2, of column g of B.
  const auto element = [&all](unsigned g, unsigned h, unsigned k) {
    const uint32_t pair = all[g * 4 + k % 8 / 2][h < 2 ? h + k / 8 * 2 : 4 + k / 8];
    return float_from_bits(k % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  };
  const unsigned g = emulator::lane() / 4, q = emulator::lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    for (unsigned k = 0; k < 16; ++k) d[i] += element(g, i / 2, k) * element(q * 2 + i % 2, 2, k);
  }
}
inline uint32_t sub_bf16x2(uint32_t a, uint32_t b) {
  return pack_bf16(float_from_bits(a << 16) - float_from_bits(b << 16),
                   float_from_bits(a & 0xffff0000u) - float_from_bits(b & 0xffff0000u));
}

// ---- wgmma: a group is computed when it is waited for, the latest time at which its operands must still be there
// --------------

struct PendingProduct {
  float* d;
  int registers;
  uint64_t a, b;  // descriptors; a is not used if its rows are here
  bool a_in_registers;
  float a_rows[2][16];
  bool accumulate;
};
std::vector<std::vector<PendingProduct>>& pending_products();  // of this thread: committed groups; the last one is open

// The thread's share: rows g and g + 8 of its warp's 16, columns 2 (lane % 4) and the next of every 8.
inline void run_product(const PendingProduct& p) {
  const uint8_t* shared = emulator::shared_at(1024, cluster_rank()) - 1024;
  const unsigned lane = emulator::lane(), warp_row = emulator::place().thread.x % 128 / 32 * 16 + lane / 4;
  float a[2][16];
  for (int h = 0; h < 2; ++h) {
    for (int k = 0; k < 16; ++k) {
      a[h][k] =
          p.a_in_registers ? p.a_rows[h][k] : testing_util::model_operand(shared, p.a, static_cast<int>(warp_row) + 8 * h, k);
    }
  }
  for (int i = 0; i < p.registers; i += (i % 2 == 0 ? 1 : 3)) {  // registers of row g; those of row g + 8 are two further
    const int column = i / 4 * 8 + static_cast<int>(lane % 4) * 2 + i % 2;
    float sums[2] = {p.accumulate ? p.d[i] : 0.0f, p.accumulate ? p.d[i + 2] : 0.0f};
    for (int k = 0; k < 16; ++k) {
      const float b = testing_util::model_operand(shared, p.b, column, k);
      sums[0] += a[0][k] * b;
      sums[1] += a[1][k] * b;
    }
    p.d[i] = sums[0];
    p.d[i + 2] = sums[1];
  }
}

// That wgmma sees what the threads have stored: both halves of 16 bytes of an operand's rows. Asked once a warpgroup.
inline void check_operand(uint64_t descriptor, int rows) {
  if (emulator::place().thread.x % 128 != 0) return;
  const uint8_t *shared = emulator::shared_at(1024, cluster_rank()) - 1024,
                *seen = emulator::seen_at(1024, cluster_rank()) - 1024;
  for (int i = 0; i < rows * 2; ++i) {
    const uint64_t at = testing_util::model_operand_address(descriptor, i / 2, i % 2 * 8);
    if (std::memcmp(shared + at, seen + at, 16) != 0)
      emulator::fail("wgmma reads what no fence between the proxies has made visible");
  }
}

inline void wgmma_fence() {}
inline void wgmma_commit() { pending_products().emplace_back(); }
template <int kPending>
void wgmma_wait() {
  auto& groups = pending_products();
  if (!groups.back().empty()) emulator::fail("a wait before the products are committed");
  while (groups.size() > kPending + 1) {
    for (const PendingProduct& p : groups.front()) run_product(p);
    groups.erase(groups.begin());
  }
}
template <int kCount>
void pin_registers(float (&)[kCount]) {}
template <int kCount>
void wgmma_bf16(float (&d)[kCount], uint64_t a, uint64_t b, bool accumulate) {
  check_operand(a, 64);
  check_operand(b, kCount * 2);
  pending_products().back().push_back({d, kCount, a, b, false, {}, accumulate});
}
// Register r of lane q of four holds, of row g (r even) or g + 8 (odd), elements 8 (r / 2) + 2 q and the next.
template <int kCount>
void wgmma_bf16(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  check_operand(b, kCount * 2);
  PendingProduct p = {d, kCount, 0, b, true, {}, accumulate};
  for (unsigned q = 0; q < 4; ++q) {
    const auto* values =
        reinterpret_cast<const uint32_t*>(emulator::exchange(reinterpret_cast<uint64_t>(&a), emulator::lane() / 4 * 4 + q));
    for (unsigned r = 0; r < 4; ++r) {
      p.a_rows[r % 2][r / 2 * 8 + q * 2] = float_from_bits(values[r] << 16);
      p.a_rows[r % 2][r / 2 * 8 + q * 2 + 1] = float_from_bits(values[r] & 0xffff0000u);
    }
  }
  pending_products().back().push_back(p);
}

}  // namespace otr::ptx
