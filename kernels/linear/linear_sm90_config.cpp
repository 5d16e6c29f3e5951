#include "kernels/linear/linear_sm90_config.h"

#include <algorithm>

namespace otr {

LinearSm90Config choose_linear_sm90(const LinearSm90Problem& p, const DeviceLimits& device) {
  return choose_linear_sm90(p, device, weight_splits(p.out_features, p.in_features));
}

LinearSm90Config choose_linear_sm90(const LinearSm90Problem& p, const DeviceLimits& device, int splits) {
  LinearSm90Config c = {};
  c.splits = splits;
  c.side_by_side = p.num_rows <= 256;
  c.consumers = p.num_rows <= 64 ? 1 : 2;
  if (p.num_rows <= 64) {
    c.tile_n = 8;
    while (c.tile_n < p.num_rows) c.tile_n *= 2;
  } else if (p.num_rows <= 256) {
    c.tile_n = 128;
  } else {
    c.tile_n = c.splits == 1 ? 256 : 192;
  }
  c.cluster = c.side_by_side ? c.splits : 2;
  c.tiles_m = (p.out_features + c.tile_m() - 1) / c.tile_m();
  c.tiles_n = (p.num_rows + c.tile_n - 1) / c.tile_n;

  const int exchange = c.side_by_side ? linear_exchange_bytes(c.splits, c.tile_n, c.consumers) : 0;
  const int blocks_per_sm = c.consumers == 1 ? 2 : 1;
  const int budget = std::min(device.shared_per_block, device.shared_per_sm / blocks_per_sm - 1024) / 1024 * 1024;
  const int fixed = kSwizzleGroupBytes + exchange + kLinearBarrierBytes;  // the first: slack to align the slots
  c.num_slots = std::min(kLinearMaxSlots, (budget - fixed) / c.slot_bytes());
  c.shared_bytes = fixed + c.num_slots * c.slot_bytes();
  c.num_clusters = std::min(c.tiles(), device.resident_clusters(c.cluster, blocks_per_sm));
  return c;
}

LinearSm90Config choose_linear_experts_sm90(const LinearSm90Problem& p, int32_t max_tiles, const DeviceLimits& device) {
  LinearSm90Config c = choose_linear_sm90(p, device, 1);
  c.tiles_n = max_tiles;
  c.num_clusters = std::min(c.tiles(), device.num_sms * (c.consumers == 1 ? 2 : 1));
  return c;
}

std::string to_string(const LinearSm90Config& c) {
  std::string s = "tile " + std::to_string(c.tile_m()) + " x " + std::to_string(c.tile_n) + ", " + std::to_string(c.num_slots) +
                  " slots of " + std::to_string(c.slot_bytes() / 1024) + " KB, " + std::to_string(c.splits);
  s += c.splits == 1 ? " split" : c.side_by_side ? " splits side by side" : " splits in turn";
  return s + ", " + std::to_string(c.num_clusters) + " clusters of " + std::to_string(c.cluster) + " for " +
         std::to_string(c.tiles()) + " tiles";
}

}  // namespace otr
