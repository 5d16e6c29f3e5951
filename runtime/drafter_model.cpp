#include "runtime/drafter_model.h"

#include <algorithm>
#include <array>

#include "kernels/page/page.h"
#include "loader/weight_plan.h"
#include "loader/weight_source.h"
#include "spec/policy.h"

namespace otr {
namespace {

constexpr std::array<std::string_view, 3> kBuiltIn = {"ngram", "history", "self"};

bool is_built_in(std::string_view name) { return std::find(kBuiltIn.begin(), kBuiltIn.end(), name) != kBuiltIn.end(); }

Result<ModelConfig> config_of(const DrafterModel& model) {
  if (model.shared) return model.shared->config;
  OTR_ASSIGN_OR_RETURN(const OpenModel opened, open_model(model.path));
  return opened.config;
}

uint64_t weight_bytes(const ModelConfig& config, bool in_4_bits) {
  const WeightPlan plan = weight_plan(config);
  const uint64_t bf16 = static_cast<uint64_t>(plan.packed_elements + plan.matrix_elements) * sizeof(Element);
  return bf16 + static_cast<uint64_t>(plan.vector_elements) * sizeof(float) + (in_4_bits ? bf16 / 100 * 27 : 0);
}

}  // namespace

Result<RoomBeside> room_beside(std::span<const DrafterModel> models, std::span<const std::string> drafters) {
  RoomBeside room;
  for (const DrafterModel& model : models) {
    const auto mentions = std::count(drafters.begin(), drafters.end(), model.name);
    if (mentions == 0) continue;
    OTR_ASSIGN_OR_RETURN(const ModelConfig config, config_of(model));
    const KvLayout layout{.num_layers = config.num_layers, .num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
    room.page_bytes += static_cast<uint64_t>(mentions) * static_cast<uint64_t>(layout.page_bytes());
    room.weight_bytes += weight_bytes(config, model.in_4_bits);
  }
  return room;
}

Result<DrafterModel> parse_drafter_model(std::string_view text) {
  constexpr std::string_view kModel = "model:", kW4 = "w4:", kExpected = "expected NAME=model:PATH or NAME=w4:PATH";
  const size_t equals = text.find('=');
  const auto fail = [text](const std::string& reason) {
    return invalid_argument("drafter '" + std::string(text) + "': " + reason);
  };
  if (equals == std::string_view::npos) return fail(std::string(kExpected));
  const std::string_view name = text.substr(0, equals), rest = text.substr(equals + 1);
  if (!is_drafter_name(name)) return fail("a name has letters, digits, '_', '-' and '.'");
  if (is_built_in(name)) return fail("the name '" + std::string(name) + "' is taken by a drafter that is always there");
  const bool in_4_bits = rest.starts_with(kW4);
  const size_t kind = in_4_bits ? kW4.size() : kModel.size();
  if ((!in_4_bits && !rest.starts_with(kModel)) || rest.size() == kind) return fail(std::string(kExpected));
  return DrafterModel{std::string(name), std::string(rest.substr(kind)), in_4_bits};
}

}  // namespace otr
