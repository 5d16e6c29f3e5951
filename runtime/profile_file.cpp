#include "runtime/profile_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "loader/file.h"
#include "loader/item_status.h"
#include "loader/json_document.h"
#include "spec/policy.h"

namespace otr {
namespace {

using nlohmann::ordered_json;

constexpr char kFormat[] = "outrider profile";
constexpr int64_t kFormatVersion = 1;
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
constexpr int64_t kMostThreads = 4096, kMostTokens = int64_t{1} << 30;
constexpr double kMostMs = 1e9;
constexpr std::array<const char*, kNumCostRoles> kRoles = {"target", "draft", "verify"};  // by CostRole

// RoleCost's numbers by their names.
struct CostKey {
  const char* name;
  double RoleCost::*value;
};
constexpr CostKey kCostKeys[] = {{"weights_ms", &RoleCost::weights_ms}, {"kv_ms", &RoleCost::kv_ms},
                                 {"row_ms", &RoleCost::row_ms},         {"attention_ms", &RoleCost::attention_ms},
                                 {"sample_ms", &RoleCost::sample_ms},   {"context_ms", &RoleCost::context_ms},
                                 {"overlap", &RoleCost::overlap}};

ordered_json cost_json(const RoleCost& cost, const Goodness& goodness) {
  ordered_json json;
  for (const CostKey& key : kCostKeys) json[key.name] = cost.*key.value;
  if (cost.pass_ms > 0) json["pass_ms"] = cost.pass_ms;
  json["points"] = goodness.points;
  json["r2"] = goodness.r2;
  json["median_error"] = goodness.median_error;
  json["worst_error"] = goodness.worst_error;
  return json;
}

// The shares by a shape_text(); 0 of another text: rows without logits then cost what those with logits do, and a pass reads
// all experts.
ShapeShares shares_of(const std::string& shape) {
  ModelConfig c;
  const int count = std::sscanf(
      shape.c_str(), "%*s layers=%9d hidden=%9d intermediate=%9d heads=%9d kv_heads=%9d head_dim=%9d vocab=%9d", &c.num_layers,
      &c.hidden_size, &c.intermediate_size, &c.num_heads, &c.num_kv_heads, &c.head_dim, &c.vocab_size);
  ExpertsConfig e;
  const size_t experts = shape.find(" experts=");
  int dense = 0;
  if (experts != std::string::npos) {
    const int found = std::sscanf(shape.c_str() + experts, " experts=%9d of_token=%9d expert_intermediate=%9d dense_layers=%9d",
                                  &e.num_experts, &e.experts_per_token, &e.intermediate_size, &dense);
    if (found != 4 || e.experts_per_token < 1 || e.experts_per_token > e.num_experts || e.intermediate_size < 1 || dense < 0 ||
        dense > kMaxLayers)
      return {};
    for (int32_t layer = 0; layer < dense; ++layer) e.dense_layers.push_back(layer);  // which ones makes no difference
    c.experts = std::move(e);
  }
  const int least =
      std::min({c.num_layers, c.hidden_size, c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size});
  return count == 7 && least > 0 && c.num_layers <= kMaxLayers ? shape_shares(c) : ShapeShares{};
}

// ---- Reading -------------------------------------------------------------------------------------------------------------

// Takes the members of one object by name; finish() refuses what was not taken. The first error stays in `status`.
class ObjectReader {
 public:
  ObjectReader(const std::string& file, const std::string& where, JsonValue object, Status* status)
      : file_(file), where_(where), object_(object), status_(status) {
    if (!object.is(JsonKind::kObject)) fail(where, "must be an object, not " + std::string(json_kind_name(object.kind())));
  }

  bool has(const char* key) const { return static_cast<bool>(object_.find(key)); }
  JsonValue take(const char* key) {
    ++taken_;
    const JsonValue value = object_.find(key);
    if (!value) fail(item(key), "is missing");
    return value;
  }
  std::string text(const char* key) {
    const JsonValue value = take(key);
    if (value && value.is(JsonKind::kString)) return std::string(value.as_string());
    if (value) fail(item(key), "must be a string");
    return {};
  }
  int64_t whole(const char* key, int64_t least, int64_t most) {
    const JsonValue value = take(key);
    const auto number = value ? value.as_int() : std::nullopt;
    if (number && *number >= least && *number <= most) return *number;
    if (value) fail(item(key), "must be an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }
  double real(const char* key, double least, double most) {
    const JsonValue value = take(key);
    const auto number = value ? value.as_double() : std::nullopt;
    if (number && *number >= least && *number <= most) return *number;
    char range[96];
    std::snprintf(range, sizeof range, "must be a number from %g to %g", least, most);
    if (value) fail(item(key), range);
    return least;
  }
  JsonValue array(const char* key) {
    const JsonValue value = take(key);
    if (value && value.is(JsonKind::kArray)) return value;
    if (value) fail(item(key), "must be an array");
    return {};
  }
  void finish() {
    if (status_->ok() && object_.size() != taken_) fail(where_, "has a key that no profile has");
  }
  std::string item(const std::string& key) const { return where_ + "." + key; }
  void fail(const std::string& what, const std::string& reason) {
    if (status_->ok()) *status_ = bad_item(file_, what, reason);
  }

 private:
  const std::string& file_;
  const std::string where_;
  const JsonValue object_;
  Status* const status_;
  uint32_t taken_ = 0;
};

class ProfileReader {
 public:
  ProfileReader(const std::string& file, Profile* profile) : file_(file), p_(*profile) {}

  Status read(JsonValue root) {
    // The format first: what another version holds is not for this one to judge.
    if (!root.is(JsonKind::kObject) || !root.find("format") || !root.find("format").is(JsonKind::kString) ||
        root.find("format").as_string() != kFormat) {
      return bad_item(file_, "format", "this is no profile of 'outrider profile'");
    }
    const JsonValue version = root.find("format_version");
    if (version && version.as_int() && *version.as_int() != kFormatVersion) {
      return unsupported_item(file_, "format_version", std::to_string(*version.as_int()) + " is not supported (1 is)");
    }
    ObjectReader keys(file_, "profile", root, &status_);
    keys.text("format");
    keys.whole("format_version", kFormatVersion, kFormatVersion);
    p_.version = keys.text("version");
    p_.commit = keys.text("commit");
    p_.subject.machine = keys.text("machine");
    p_.subject.isa = keys.text("isa");
    p_.subject.threads = static_cast<int32_t>(keys.whole("threads", 1, kMostThreads));
    p_.subject.target = keys.text("target");
    read_drafters(keys.array("drafters"));
    p_.max_batch = static_cast<int32_t>(keys.whole("max_batch", 1, kMostTokens));
    p_.max_context = static_cast<int32_t>(keys.whole("max_context", 0, kMostTokens));
    read_passes(keys.array("passes"));
    read_fits(keys.array("fits"), &keys);
    keys.finish();
    for (size_t d = 0; d < p_.fits.size(); ++d) {
      auto& roles = p_.fits[d].model.roles;
      for (const CostRole role : {CostRole::kTarget, CostRole::kVerify})
        roles[static_cast<size_t>(role)].shares = shares_of(p_.subject.target);
      if (d < p_.subject.drafters.size())
        roles[static_cast<size_t>(CostRole::kDraft)].shares = shares_of(p_.subject.drafters[d].shape);
    }
    return status_;
  }

 private:
  template <typename Read>
  void for_each(JsonValue array, const char* what, const Read& read) {
    if (!array) return;
    size_t index = 0;
    for (JsonValue value = array.first(); value && status_.ok(); value = value.next(), ++index) {
      ObjectReader keys(file_, std::string(what) + "[" + std::to_string(index) + "]", value, &status_);
      if (status_.ok()) read(&keys);
      keys.finish();
    }
  }

  // The number of the drafter that `key` names.
  int32_t drafter(ObjectReader* keys, const char* key) {
    const std::string name = keys->text(key);
    const auto& all = p_.subject.drafters;
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& d) { return d.name == name; });
    if (found == all.end()) keys->fail(keys->item(key), "is none of the profile's drafters: " + in_quotes(name));
    return static_cast<int32_t>(found - all.begin());
  }

  void read_drafters(JsonValue array) {
    for_each(array, "drafters", [this](ObjectReader* keys) {
      const ProfileSubject::Drafter drafter{keys->text("name"), keys->text("shape")};
      if (!is_drafter_name(drafter.name)) keys->fail(keys->item("name"), "is no drafter's name");
      if (drafter.shape.empty()) keys->fail(keys->item("shape"), "is empty");
      for (const auto& other : p_.subject.drafters) {
        if (other.name == drafter.name) keys->fail(keys->item("name"), "is there twice");
      }
      p_.subject.drafters.push_back(drafter);
    });
  }

  void read_passes(JsonValue array) {
    for_each(array, "passes", [this](ObjectReader* keys) {
      TimedPass pass;
      const std::string role = keys->text("role");
      const auto found = std::find(kRoles.begin(), kRoles.end(), role);
      if (found == kRoles.end()) return keys->fail(keys->item("role"), "must be target, verify or draft");
      pass.point.role = static_cast<CostRole>(found - kRoles.begin());
      if (pass.point.role == CostRole::kDraft) pass.drafter = drafter(keys, "drafter");
      PassShape& shape = pass.point.pass;
      shape.batch = static_cast<double>(keys->whole("batch", 1, kMostTokens));
      shape.rows = static_cast<double>(keys->whole("rows", 1, kMostTokens));
      shape.context = static_cast<double>(keys->whole("context", 0, kMostTokens));
      pass.point.ms = keys->real("ms", 1e-9, kMostMs);
      if (shape.rows < shape.batch) keys->fail(keys->item("rows"), "are fewer than the samples");
      p_.passes.push_back(pass);
    });
  }

  void read_fits(JsonValue array, ObjectReader* profile) {
    const size_t wanted = std::max<size_t>(1, p_.subject.drafters.size());
    if (array && array.size() != 0 && array.size() != wanted)
      profile->fail(profile->item("fits"), "must be none, or one a drafter");
    for_each(array, "fits", [this](ObjectReader* keys) {
      if (p_.subject.drafters.empty()) {
        if (const JsonValue none = keys->take("drafter"); none && !none.is_null())
          keys->fail(keys->item("drafter"), "must be null");
      } else if (drafter(keys, "drafter") != static_cast<int32_t>(p_.fits.size())) {
        keys->fail(keys->item("drafter"), "is out of order");
      }
      CostFit fit;
      fit.model.comm_ms = keys->real("comm_ms", 0, kMostMs);
      for (size_t r = 0; r < kNumCostRoles; ++r) {
        const JsonValue cost = keys->take(kRoles[r]);
        if (cost) read_cost(cost, keys->item(kRoles[r]), &fit.model.roles[r], &fit.goodness[r]);
      }
      p_.fits.push_back(std::move(fit));
    });
  }

  void read_cost(JsonValue value, const std::string& where, RoleCost* cost, Goodness* goodness) {
    ObjectReader keys(file_, where, value, &status_);
    if (!status_.ok()) return;
    for (const CostKey& key : kCostKeys)
      cost->*key.value = keys.real(key.name, 0, key.value == &RoleCost::overlap ? 1 : kMostMs);
    if (keys.has("pass_ms")) cost->pass_ms = keys.real("pass_ms", 0, kMostMs);
    goodness->points = keys.whole("points", 0, kMostTokens);
    goodness->r2 = keys.real("r2", -1e300, 1);
    goodness->median_error = keys.real("median_error", 0, 1e300);
    goodness->worst_error = keys.real("worst_error", 0, 1e300);
    keys.finish();
  }

  const std::string& file_;
  Profile& p_;
  Status status_;
};

}  // namespace

std::string machine_name() {
  std::string name = "unknown";
  if (std::FILE* f = std::fopen("/proc/cpuinfo", "re"); f != nullptr) {
    char line[512];
    while (std::fgets(line, sizeof line, f) != nullptr) {
      const std::string_view text(line);
      const size_t colon = text.find(": "), end = text.find('\n');
      if (!text.starts_with("model name") || colon == std::string_view::npos || end == std::string_view::npos) continue;
      name = printable(text.substr(colon + 2, end - colon - 2));
      break;
    }
    std::fclose(f);
  }
  return name;
}

std::string shape_text(const ModelConfig& c) {
  std::string text(architecture_name(c.architecture));
  const auto add = [&text](const char* name, int32_t size) { text += std::string(" ") + name + "=" + std::to_string(size); };
  add("layers", c.num_layers);
  add("hidden", c.hidden_size);
  add("intermediate", c.intermediate_size);
  add("heads", c.num_heads);
  add("kv_heads", c.num_kv_heads);
  add("head_dim", c.head_dim);
  add("vocab", c.vocab_size);
  if (c.experts) {
    add("experts", c.experts->num_experts);
    add("of_token", c.experts->experts_per_token);
    add("expert_intermediate", c.experts->intermediate_size);
    add("dense_layers", static_cast<int32_t>(c.experts->dense_layers.size()));
  }
  return text;
}

ProfileSubject subject_of(const Device& device) {
  ProfileSubject subject;
  subject.machine = machine_name();
  subject.isa = device.isa();
  subject.threads = device.num_threads();
  subject.target = shape_text(device.target().config());
  return subject;
}

std::string drafter_shape(const TimedProgram& timed, const ModelRunner& target) {
  return shape_text(timed.model->config()) + (timed.model == &target || timed.model->in_4_bits() ? " 4-bit" : "");
}

const char* build_commit() { return OUTRIDER_COMMIT; }

std::string profile_json(const Profile& p) {
  ordered_json json = {{"format", kFormat},
                       {"format_version", kFormatVersion},
                       {"version", p.version},
                       {"commit", p.commit},
                       {"machine", p.subject.machine},
                       {"isa", p.subject.isa},
                       {"threads", p.subject.threads},
                       {"target", p.subject.target}};
  json["drafters"] = ordered_json::array();
  for (const auto& drafter : p.subject.drafters) json["drafters"].push_back({{"name", drafter.name}, {"shape", drafter.shape}});
  json["max_batch"] = p.max_batch;
  json["max_context"] = p.max_context;
  json["passes"] = ordered_json::array();
  for (const TimedPass& pass : p.passes) {
    ordered_json one = {{"role", kRoles[static_cast<size_t>(pass.point.role)]}};
    if (pass.drafter != TimedPass::kTarget) one["drafter"] = p.subject.drafters[static_cast<size_t>(pass.drafter)].name;
    one["batch"] = std::llround(pass.point.pass.batch);
    one["rows"] = std::llround(pass.point.pass.rows);
    one["context"] = std::llround(pass.point.pass.context);
    one["ms"] = pass.point.ms;
    json["passes"].push_back(std::move(one));
  }
  json["fits"] = ordered_json::array();
  for (size_t d = 0; d < p.fits.size(); ++d) {
    const CostFit& fit = p.fits[d];
    ordered_json one = {
        {"drafter", p.subject.drafters.empty() ? ordered_json(nullptr) : ordered_json(p.subject.drafters[d].name)},
        {"comm_ms", fit.model.comm_ms}};
    for (size_t r = 0; r < kNumCostRoles; ++r) one[kRoles[r]] = cost_json(fit.model.roles[r], fit.goodness[r]);
    json["fits"].push_back(std::move(one));
  }
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<Profile> parse_profile(const std::string& label, std::string_view text) {
  OTR_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(label, text));
  Profile profile;
  OTR_RETURN_IF_ERROR(ProfileReader(label, &profile).read(document.root()));
  return profile;
}

Result<Profile> load_profile(const std::string& path) {
  OTR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxBytes));
  return parse_profile(path, text);
}

Status save_profile(const Profile& profile, const std::string& path) {
  const std::string text = profile_json(profile);
  ReplacedFile file(path);
  OTR_RETURN_IF_ERROR(file.created());
  OTR_RETURN_IF_ERROR(file.write(text.data(), text.size()));
  return file.rename();
}

std::string mismatch(const ProfileSubject& a, const ProfileSubject& b) {
  const auto other = [](const char* what, const std::string& is, const std::string& wanted) {
    return std::string(what) + ": the profile is of " + in_quotes(is) + ", not of " + in_quotes(wanted);
  };
  if (a.machine != b.machine) return other("machine", a.machine, b.machine);
  if (a.isa != b.isa) return other("isa", a.isa, b.isa);
  if (a.threads != b.threads) return other("threads", std::to_string(a.threads), std::to_string(b.threads));
  if (a.target != b.target) return other("target", a.target, b.target);
  for (const auto& drafter : b.drafters) {
    if (drafter.shape.empty()) continue;
    const auto found =
        std::find_if(a.drafters.begin(), a.drafters.end(), [&](const auto& d) { return d.name == drafter.name; });
    if (found == a.drafters.end()) return "drafters: the profile has no drafter " + in_quotes(drafter.name);
    if (found->shape != drafter.shape) return other(("drafter " + drafter.name).c_str(), found->shape, drafter.shape);
  }
  return {};
}

Result<std::vector<CostModel>> costs_of(const Profile& profile, const std::string& path, const ProfileSubject& engine) {
  if (const std::string reason = mismatch(profile.subject, engine); !reason.empty()) return bad_input(path + ": " + reason);
  if (profile.fits.empty()) return bad_input(path + ": fits: there are none: the profile is not complete");
  const auto& profiled = profile.subject.drafters;
  std::vector<CostModel> costs;
  for (const auto& drafter : engine.drafters) {
    const auto found = std::find_if(profiled.begin(), profiled.end(), [&](const auto& d) { return d.name == drafter.name; });
    const bool has_model = !drafter.shape.empty();
    CostModel model = profile.fits[has_model ? static_cast<size_t>(found - profiled.begin()) : 0].model;
    if (!has_model) model.roles[static_cast<size_t>(CostRole::kDraft)] = {};
    costs.push_back(model);
  }
  return costs;
}

}  // namespace otr
