#include "spec/policy.h"

#include <gtest/gtest.h>

namespace otr {
namespace {

TEST(ParsePolicy, KnowsOff) {
  const Result<Policy> policy = parse_policy("off");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy.value().kind, PolicyKind::kOff);
  EXPECT_TRUE(policy.value().drafters.empty());
  EXPECT_EQ(policy.value().verify_tokens, 0);
}

TEST(ParsePolicy, ReadsFixedStrategies) {
  struct Case {
    const char* text;
    std::vector<std::string> drafters;
    int32_t depth, top_k, verify_tokens;
  };
  const Case cases[] = {
      {"fixed:ngram:4", {"ngram"}, 4, 1, 4},
      {"fixed:self:64", {"self"}, 64, 1, 64},
      {"fixed:ngram+small:8", {"ngram", "small"}, 8, 1, 16},
      {"fixed:small:8:4", {"small"}, 8, 4, 32},
      {"fixed:small:8:4:48", {"small"}, 8, 4, 48},
      {"fixed:a.b_c-D9:1:16:1", {"a.b_c-D9"}, 1, 16, 1},
      {"fixed:small:64:16", {"small"}, 64, 16, 256},
  };
  for (const Case& c : cases) {
    const Result<Policy> policy = parse_policy(c.text);
    ASSERT_TRUE(policy.ok()) << c.text << ": " << policy.status().message();
    const Policy& p = policy.value();
    EXPECT_EQ(p.kind, PolicyKind::kFixed);
    EXPECT_EQ(p.drafters, c.drafters) << c.text;
    EXPECT_EQ(p.depth, c.depth) << c.text;
    EXPECT_EQ(p.top_k, c.top_k) << c.text;
    EXPECT_EQ(p.verify_tokens, c.verify_tokens) << c.text;
  }
}

TEST(ParsePolicy, ReadsTheRuleThatTreesGrowBy) {
  const Result<Policy> by_q = parse_policy("fixed:small:8:4:48:q"), by_acceptance = parse_policy("fixed:small:8:4:48");
  ASSERT_TRUE(by_q.ok() && by_acceptance.ok());
  EXPECT_TRUE(by_q.value().by_q);
  EXPECT_EQ(by_q.value().verify_tokens, 48);
  EXPECT_FALSE(by_acceptance.value().by_q);
}

TEST(ParsePolicy, ReadsDecoupledWindows) {
  const Result<Policy> policy = parse_policy("fixed:ngram+small:6:decoupled");
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy.value().decoupled);
  EXPECT_EQ(policy.value().depth, 6);
  EXPECT_EQ(policy.value().top_k, 1);
  EXPECT_FALSE(parse_policy("fixed:small:6").value().decoupled);
  for (const char* text : {"fixed:small:decoupled", "fixed:small:6:1:decoupled", "fixed:small:6:1:6:decoupled",
                           "fixed:small:6:decoupled:q", "fixed:small:6:Decoupled", "auto:decoupled"}) {
    EXPECT_FALSE(parse_policy(text).ok()) << text;
  }
}

TEST(ParsePolicy, KnowsTheLimitsOfNames) {
  std::string sixteen = "fixed:d0";
  for (int32_t i = 1; i < 16; ++i) sixteen += "+d" + std::to_string(i);
  EXPECT_EQ(parse_policy(sixteen + ":2").value().drafters.size(), 16u);
  EXPECT_FALSE(parse_policy(sixteen + "+d16:2").ok());
  EXPECT_TRUE(is_drafter_name(std::string(64, 'a')));
  EXPECT_FALSE(is_drafter_name(std::string(65, 'a')));
  EXPECT_FALSE(is_drafter_name(""));
  for (const char c : {' ', '/', ':', '+', '@', '[', '`', '{', '\0'}) EXPECT_FALSE(is_drafter_name(std::string(1, c))) << c;
  for (const char c : {'a', 'z', 'A', 'Z', '0', '9', '_', '-', '.'}) EXPECT_TRUE(is_drafter_name(std::string(1, c))) << c;
}

TEST(ParsePolicy, ReadsTheVariantsOfAuto) {
  const Policy plain = parse_policy("auto").value(),
               all = parse_policy("auto:uncoupled:chain:q:untuned:stragglers:leapfrog").value();
  EXPECT_FALSE(plain.uncoupled || plain.by_q || plain.untuned || plain.stragglers || plain.leapfrog);
  EXPECT_TRUE(all.uncoupled && all.by_q && all.untuned && all.stragglers && all.leapfrog);
  const Policy q = parse_policy("auto:q").value(), leapfrog = parse_policy("auto:leapfrog").value();
  EXPECT_TRUE(q.by_q && !q.leapfrog && !q.uncoupled && !q.untuned && !q.stragglers);
  EXPECT_TRUE(leapfrog.leapfrog && !leapfrog.by_q && !leapfrog.uncoupled && !leapfrog.untuned && !leapfrog.stragglers);
  EXPECT_EQ(q.top_k, plain.top_k);
  EXPECT_EQ(leapfrog.kind, PolicyKind::kAuto);
  EXPECT_EQ(all.kind, PolicyKind::kAuto);
  EXPECT_GT(plain.top_k, 1);
  EXPECT_EQ(all.top_k, 1);
  for (const char* text :
       {"auto:", "auto:fast", "auto:chain:", "auto:Q", "auto:leapfrog:4", "fixed:ngram:4:leapfrog", "tlt:chain", "off:chain"})
    EXPECT_FALSE(parse_policy(text).ok()) << text;
}

TEST(ParsePolicy, RefusesAVariantThatIsGivenTwice) {
  for (const char* text : {"auto:q:q", "auto:chain:q:chain", "auto:leapfrog:stragglers:untuned:stragglers"}) {
    const Result<Policy> policy = parse_policy(text);
    ASSERT_FALSE(policy.ok()) << text;
    const std::string last = std::string(text).substr(std::string(text).rfind(':') + 1);
    EXPECT_EQ(policy.status().message(), "policy '" + std::string(text) + "': '" + last + "' is given twice");
  }
}

TEST(ParsePolicy, KnowsThePapersByName) {
  struct Case {
    const char* name;
    PolicyKind kind;
    bool costs, by_q;
    std::vector<std::string> alone, with_models;  // drafters
  };
  const Case cases[] = {
      {"specactor", PolicyKind::kSpecactor, true, false, {"ngram", "history", "self"}, {"ngram", "history", "self", "b", "a"}},
      {"rhymerl", PolicyKind::kRhymerl, true, false, {"history"}, {"history"}},
      {"tlt", PolicyKind::kTlt, false, true, {"self", "ngram"}, {"b", "ngram"}},
      {"efficientrollout", PolicyKind::kEfficientrollout, true, false, {"self"}, {"self"}},
  };
  const std::vector<std::string> models = {"b", "a"};
  for (const Case& c : cases) {
    const Result<Policy> parsed = parse_policy(c.name);
    ASSERT_TRUE(parsed.ok()) << c.name;
    EXPECT_EQ(parsed.value().kind, c.kind);
    EXPECT_EQ(parsed.value().by_q, c.by_q);
    EXPECT_EQ(needs_costs(parsed.value()), c.costs);
    EXPECT_FALSE(uses_history_logprobs(parsed.value()));
    Policy p = parsed.value();
    ASSERT_TRUE(name_drafters({}, &p).ok());
    EXPECT_EQ(p.drafters, c.alone) << c.name;
    ASSERT_TRUE(name_drafters(models, &p).ok());
    EXPECT_EQ(p.drafters, c.with_models) << c.name;
    EXPECT_LE(p.depth, 64);
    EXPECT_GE(p.verify_tokens, p.depth);
  }
}

TEST(NameDrafters, LeavesGivenOnesAloneAndKnowsTheLimit) {
  Policy fixed = parse_policy("fixed:self:3").value(), off;
  const std::vector<std::string> many(14, "m");
  ASSERT_TRUE(name_drafters(many, &fixed).ok() && name_drafters(many, &off).ok());
  EXPECT_EQ(fixed.drafters, std::vector<std::string>{"self"});
  EXPECT_TRUE(off.drafters.empty());
  EXPECT_TRUE(uses_history_logprobs(fixed));
  const Policy automatic = parse_policy("auto").value();
  EXPECT_TRUE(uses_history_logprobs(automatic) && needs_costs(automatic));
  EXPECT_FALSE(needs_costs(fixed) || needs_costs(off));
  Policy specactor = parse_policy("specactor").value();
  EXPECT_FALSE(name_drafters(many, &specactor).ok());  // 17
  EXPECT_TRUE(name_drafters(std::span(many).first(13), &specactor).ok());
}

TEST(ParsePolicy, RefusesAllElseByName) {
  for (const char* text : {"",
                           "Off",
                           "off ",
                           " off",
                           "offline",
                           "auto:",
                           "Auto",
                           "off:ngram",
                           "tlt:small",
                           "Specactor",
                           "rhymerl ",
                           "fixed",
                           "fixed:ngram",
                           "fixed::4",
                           "fixed:ngram:0",
                           "fixed:ngram:65",
                           "fixed:ngram:-1",
                           "fixed:ngram:4x",
                           "fixed:ngram:",
                           "fixed:ngram:4:0",
                           "fixed:ngram:4:17",
                           "fixed:ngram:4:1:0",
                           "fixed:ngram:4:1:257",
                           "fixed:ngram:4:1:1:1",
                           "fixed:ngram:4:q",
                           "fixed:ngram:4:1:q",
                           "fixed:ngram:4:1:1:",
                           "fixed:ngram:4:1:1:Q",
                           "fixed:ngram:4:1:1:q:q",
                           "off:1:1:1:1:q",
                           "fixed:ngram+ngram:4",
                           "fixed:+ngram:4",
                           "fixed:a b:4",
                           "fixed:ngram:99999999999",
                           "FIXED:ngram:4"}) {
    const Result<Policy> policy = parse_policy(text);
    ASSERT_FALSE(policy.ok()) << text;
    EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(policy.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace otr
