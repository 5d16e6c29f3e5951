#include "kernels/linear_w4/linear_w4_wide_sm90_config.h"

#include <algorithm>

namespace otr {

LinearW4WideSm90Config choose_linear_w4_wide_sm90(const LinearSm90Problem& p, const DeviceLimits& device) {
  LinearW4WideSm90Config c = {};
  c.tile_n = p.num_rows <= 64 ? 64 : 128;
  c.splits = w4_wide_splits(p.out_features, p.in_features);
  c.tiles_m = (p.out_features + kW4WideBlockM - 1) / kW4WideBlockM;
  c.tiles_n = (p.num_rows + c.tile_n - 1) / c.tile_n;
  // The first: slack to align the slots.
  const int fixed = kSwizzleGroupBytes + kW4WideExpandedBytes + (c.splits > 1 ? kW4WideExchangeBytes : 0) + kW4WideBarrierBytes;
  const int slot = w4_wide_slot_bytes(c.tile_n), budget = std::min(device.shared_per_block, device.shared_per_sm - 1024);
  c.num_slots = std::min(kW4WideMaxSlots, (budget - fixed) / slot);
  c.shared_bytes = fixed + c.num_slots * slot;
  c.num_clusters = std::min(c.tiles(), device.resident_clusters(c.splits, 1));
  return c;
}

std::string to_string(const LinearW4WideSm90Config& c) {
  return "tile " + std::to_string(kW4WideBlockM) + " x " + std::to_string(c.tile_n) + ", " + std::to_string(c.num_slots) +
         " slots of " + std::to_string(w4_wide_slot_bytes(c.tile_n) / 1024) + " KB, " + std::to_string(c.num_clusters) +
         " clusters of " + std::to_string(c.splits) + " for " + std::to_string(c.tiles()) + " tiles";
}

}  // namespace otr
