#include "kernels/linear_w4/linear_w4_sm90_config.h"

#include <algorithm>

namespace otr {

LinearW4Sm90Config choose_linear_w4_sm90(const LinearSm90Problem& p, const DeviceLimits& device) {
  LinearW4Sm90Config c = {};
  c.tile_n = p.num_rows <= 8 ? 8 : p.num_rows <= 16 ? 16 : 32;
  c.cluster = w4_sm90_cluster(p.out_features, p.in_features);
  c.tiles_m = w4_sm90_blocks(p.out_features);
  c.tiles_n = (p.num_rows + c.tile_n - 1) / c.tile_n;
  const int fixed = kW4Sm90ExchangeBytes + kW4Sm90BarrierBytes, slot = kW4Sm90Warps * w4_sm90_slot_bytes(c.tile_n);
  const int budget = std::min(device.shared_per_block, device.shared_per_sm - 1024);
  c.num_slots = std::min(kW4Sm90MaxSlots, (budget - fixed) / slot);
  c.shared_bytes = fixed + c.num_slots * slot;
  c.num_clusters = std::min(c.tiles(), device.resident_clusters(c.cluster, 1));
  return c;
}

LinearW4Sm90Config choose_linear_w4_experts_sm90(const LinearSm90Problem& p, int32_t max_tiles, const DeviceLimits& device) {
  LinearW4Sm90Config c = choose_linear_w4_sm90(p, device);
  c.cluster = 1;
  c.tiles_n = max_tiles;
  c.num_clusters = std::min(c.tiles(), std::max(1, device.num_sms));
  return c;
}

std::string to_string(const LinearW4Sm90Config& c) {
  return "tile " + std::to_string(kW4Sm90BlockM) + " x " + std::to_string(c.tile_n) + ", " + std::to_string(kW4Sm90Warps) +
         " warps with " + std::to_string(c.num_slots) + " slots of " + std::to_string(w4_sm90_slot_bytes(c.tile_n)) +
         " bytes, " + std::to_string(c.num_clusters) + " clusters of " + std::to_string(c.cluster) + " for " +
         std::to_string(c.tiles()) + " tiles";
}

}  // namespace otr
