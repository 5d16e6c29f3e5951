#include "spec/policy.h"

#include <algorithm>
#include <charconv>

#include "spec/forest.h"

namespace otr {
namespace {

constexpr std::string_view kGrammar =
    "expected auto[:uncoupled][:chain][:q][:untuned][:stragglers][:leapfrog], off, specactor, rhymerl, tlt, efficientrollout "
    "or fixed:<drafter>[+<drafter>…]:<depth>[:<top_k>[:<verify_tokens>[:q]] | :decoupled]";

struct Preset {
  std::string_view name;
  PolicyKind kind;
  int32_t depth, top_k, verify_tokens;
  bool by_q;
};
constexpr Preset kPresets[] = {{"auto", PolicyKind::kAuto, 32, 3, 64, false},
                               {"specactor", PolicyKind::kSpecactor, 16, 1, 16, false},
                               {"rhymerl", PolicyKind::kRhymerl, 32, 1, 32, false},
                               {"tlt", PolicyKind::kTlt, 12, 4, 48, true},
                               {"efficientrollout", PolicyKind::kEfficientrollout, 11, 1, 11, false}};

// Cuts `text` at every `separator`.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Policy> parse() {
    std::vector<std::string_view> parts = split(text_, ':');
    if (text_ == "off") return Policy{};
    for (const Preset& preset : kPresets) {
      if (parts[0] != preset.name) continue;
      Policy p{.kind = preset.kind,
               .drafters = {},
               .depth = preset.depth,
               .top_k = preset.top_k,
               .verify_tokens = preset.verify_tokens,
               .by_q = preset.by_q};
      for (auto variant = parts.begin() + 1; variant != parts.end(); ++variant) {
        if (p.kind != PolicyKind::kAuto || !apply(*variant, &p)) return fail(std::string(kGrammar));
        if (std::find(parts.begin() + 1, variant, *variant) != variant)
          return fail("'" + std::string(*variant) + "' is given twice");
      }
      return p;
    }
    Policy p;
    p.by_q = parts.size() == 6 && parts.back() == "q";
    p.decoupled = parts.size() == 4 && parts.back() == "decoupled";
    if (p.by_q || p.decoupled) parts.pop_back();
    if (parts[0] != "fixed" || parts.size() < 3 || parts.size() > 5) return fail(std::string(kGrammar));
    p.kind = PolicyKind::kFixed;
    for (const std::string_view name : split(parts[1], '+')) {
      if (!is_drafter_name(name)) return fail("'" + std::string(name) + "' is no drafter's name");
      if (std::find(p.drafters.begin(), p.drafters.end(), name) != p.drafters.end()) {
        return fail("drafter '" + std::string(name) + "' is named twice");
      }
      p.drafters.emplace_back(name);
    }
    if (p.drafters.size() > static_cast<size_t>(kMaxDrafters))
      return fail("there are more than " + std::to_string(kMaxDrafters) + " drafters");
    OTR_RETURN_IF_ERROR(number("depth", parts[2], kMaxDraftDepth, &p.depth));
    if (parts.size() > 3) OTR_RETURN_IF_ERROR(number("top_k", parts[3], kMaxTopK, &p.top_k));
    p.verify_tokens = std::min(kMaxDraftNodes, p.depth * p.top_k * static_cast<int32_t>(p.drafters.size()));
    if (parts.size() > 4) OTR_RETURN_IF_ERROR(number("verify_tokens", parts[4], kMaxDraftNodes, &p.verify_tokens));
    return p;
  }

 private:
  static bool apply(std::string_view variant, Policy* p) {
    if (variant == "uncoupled") p->uncoupled = true;
    else if (variant == "chain") p->top_k = 1;
    else if (variant == "q") p->by_q = true;
    else if (variant == "untuned") p->untuned = true;
    else if (variant == "stragglers") p->stragglers = true;
    else if (variant == "leapfrog") p->leapfrog = true;
    else return false;
    return true;
  }

  Status fail(const std::string& reason) const { return invalid_argument("policy '" + std::string(text_) + "': " + reason); }

  Status number(const char* what, std::string_view digits, int32_t most, int32_t* value) const {
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, *value);
    if (error == std::errc{} && stop == end && *value >= 1 && *value <= most) return {};
    return fail(std::string(what) + " must be between 1 and " + std::to_string(most));
  }

  std::string_view text_;
};

}  // namespace

bool is_drafter_name(std::string_view name) {
  constexpr size_t kLongest = 64;
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kLongest && std::all_of(name.begin(), name.end(), allowed);
}

Result<Policy> parse_policy(std::string_view text) { return Parser(text).parse(); }

Status name_drafters(std::span<const std::string> models, Policy* policy) {
  switch (policy->kind) {
    case PolicyKind::kOff:
    case PolicyKind::kFixed: return {};
    case PolicyKind::kAuto: break;  // the engine knows what there is
    case PolicyKind::kSpecactor:
      policy->drafters = {"ngram", "history", "self"};
      policy->drafters.insert(policy->drafters.end(), models.begin(), models.end());
      break;
    case PolicyKind::kRhymerl: policy->drafters = {"history"}; break;
    case PolicyKind::kTlt: policy->drafters = {models.empty() ? "self" : models.front(), "ngram"}; break;
    case PolicyKind::kEfficientrollout: policy->drafters = {"self"}; break;
  }
  if (policy->drafters.size() <= static_cast<size_t>(kMaxDrafters)) return {};
  return invalid_argument("the policy has " + std::to_string(policy->drafters.size()) + " drafters, more than " +
                          std::to_string(kMaxDrafters));
}

bool needs_costs(const Policy& policy) {
  return policy.kind == PolicyKind::kAuto || policy.kind == PolicyKind::kSpecactor || policy.kind == PolicyKind::kRhymerl ||
         policy.kind == PolicyKind::kEfficientrollout;
}

bool uses_history_logprobs(const Policy& policy) {
  return policy.kind == PolicyKind::kFixed || policy.kind == PolicyKind::kAuto;
}

}  // namespace otr
