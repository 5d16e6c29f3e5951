// KvOverlap: the last copies of a gap, that come while the pass which needs them is under way ("layer-wise overlap"): layer by
// layer, layer l of all pages before layer l + 1, each before the pass comes to it. KvRebuild says which, by sched's rule
// (kv_split.h).
//
// Over a link that brings so many bytes a second a layer is waited for; by that rule in all never longer than the shortest tick
// of late. A paced worker computes its passes in no time of its clock, so there copies are made at once, and the pass is held
// for as much longer. A lease that ends in the middle loses its sequence's copies: what its rows read from there on is whatever
// stood on those pages, so nothing that they found may be kept. Other rows never see it: a row reads its own sequence's pages
// alone.
//
// A worker's: single-threaded. Nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "graph/layer_gate.h"
#include "runtime/model_runner.h"
#include "runtime/pace.h"
#include "runtime/request.h"
#include "runtime/worker_options.h"
#include "sched/kv_split.h"

namespace otr {

class KvOverlap final : public LayerGate {
 public:
  static constexpr size_t kMost = 8;  // sequences in one pass; further ones wait for whole pages
  struct Entry {
    Sequence* s = nullptr;
    int32_t first = 0, count = 0;  // pages of its lease
    int32_t layers = 0;            // that have come
    bool lost = false;
  };

  // All outlive it. `pace`: by whose clock copies come; null: the wall's.
  KvOverlap(ModelRunner* target, const RebuildOptions& options, const Pace* pace)
      : target_(*target), options_(options), pace_(pace), since_tick_(pace) {}

  // ---- Before the pass ----
  // Of what the link has brought so many bytes have not been copied; and then some have, as whole pages.
  void begin_tick(double arrived_bytes);
  void note_copied(double bytes) { arrived_at_tick_ -= bytes; }
  bool takes(const KvLease& lease) const;
  // What there would be to wait for with so many pages more.
  ComingCopies coming(int32_t more_pages) const;
  // REQUIRES: takes(its lease); its pages from `first` on are allocated.
  void add(Sequence* s, int32_t first, int32_t count);
  size_t size() const { return size_; }
  const Entry& operator[](size_t i) const { return entries_[i]; }
  bool has(const Sequence& s) const;
  Entry remove(size_t i) { return std::exchange(entries_[i], entries_[--size_]); }
  int32_t forget(const Sequence& s);  // how many pages do not come

  // ---- The pass ----
  void before_layer(int32_t layer) override;
  // How long a pass of `ms` takes with the waits in it. To be asked once, behind the pass of a paced worker.
  double held_ms(double ms);
  double waited_seconds() const { return waited_; }  // in this tick

 private:
  int32_t num_layers() const { return target_.kv_layout().num_layers; }
  double bytes(int32_t pages) const { return static_cast<double>(pages) * static_cast<double>(target_.page_bytes()); }
  double arrived() const { return arrived_at_tick_ + options_.link_bytes_per_second * since_tick_.seconds(); }
  double seconds_until(int32_t layer, double arrived_bytes) const;

  ModelRunner& target_;
  const RebuildOptions options_;
  const Pace* const pace_;
  std::array<Entry, kMost> entries_;
  size_t size_ = 0;
  PacedStopwatch since_tick_;
  double arrived_at_tick_ = 0, arrived_at_pass_ = 0;  // bytes
  double waited_ = 0;
};

}  // namespace otr
