// Profile files: what is written is read, what is wrong is refused by name, and times of something else are not used.

#include "runtime/profile_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/profiler.h"
#include "tests/runtime/rollouts.h"
#include "tests/runtime/tiny_model.h"

namespace otr {
namespace {

using nlohmann::json;

Profile example() {
  Profile p;
  p.version = "0.1.0";
  p.commit = "abc1234";
  p.subject = {"A \"quoted\" machine",
               "cpu-scalar",
               3,
               "qwen2 layers=1",
               {{"self", "qwen2 layers=1 4-bit"}, {"small", "qwen2 layers=0"}}};
  p.max_batch = 4;
  p.max_context = 256;
  p.passes = {{TimedPass::kTarget, {CostRole::kTarget, {1, 1, 64}, 0.1}},
              {TimedPass::kTarget, {CostRole::kVerify, {4, 16, 256}, 1.0 / 3}},
              {1, {CostRole::kDraft, {4, 4, 0}, 1e-3}}};
  for (int d = 0; d < 2; ++d) {
    CostFit fit;
    for (size_t r = 0; r < kNumCostRoles; ++r) {
      const double x = 0.1 + static_cast<double>(r) + 10.0 * d;
      fit.model.roles[r] = {x, x / 3, x / 7, 0, x / 11, 1e-17, 0.95};
      fit.goodness[r] = {28, -0.5, 0.04, 0.3};
    }
    p.fits.push_back(fit);
  }
  return p;
}

void expect_equal(const Profile& a, const Profile& b) {
  EXPECT_EQ(profile_json(a), profile_json(b));
  EXPECT_TRUE(a.subject == b.subject);
  ASSERT_EQ(a.passes.size(), b.passes.size());
  for (size_t i = 0; i < a.passes.size(); ++i) {
    EXPECT_EQ(a.passes[i].drafter, b.passes[i].drafter);
    EXPECT_EQ(a.passes[i].point.ms, b.passes[i].point.ms);
    EXPECT_EQ(a.passes[i].point.pass.rows, b.passes[i].point.pass.rows);
  }
  ASSERT_EQ(a.fits.size(), b.fits.size());
  for (size_t d = 0; d < a.fits.size(); ++d) {
    for (const CostRole role : {CostRole::kTarget, CostRole::kDraft, CostRole::kVerify}) {
      EXPECT_EQ(a.fits[d].model.time_ms(role, {3, 5, 77}), b.fits[d].model.time_ms(role, {3, 5, 77})) << "to the last bit";
    }
  }
}

class ProfileFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("outrider-profile-" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

TEST_F(ProfileFile, ReadsWhatItWrites) {
  for (const bool complete : {true, false}) {
    Profile p = example();
    if (!complete) p.fits.clear();
    ASSERT_TRUE(save_profile(p, path("p.json")).ok());
    const auto read = load_profile(path("p.json"));
    ASSERT_TRUE(read.ok()) << read.status().message();
    expect_equal(p, read.value());
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "no temporary file stays";
  EXPECT_EQ(load_profile(path("none.json")).status().code(), StatusCode::kIoError);
  EXPECT_EQ(save_profile(example(), path("no/folder.json")).code(), StatusCode::kIoError);
}

TEST(ProfileText, RefusesWhatIsWrongByName) {
  struct Fault {
    std::function<void(json*)> plant;
    const char* says;
  };
  const std::vector<Fault> faults = {
      {[](json* j) { j->erase("isa"); }, "profile.isa: is missing"},
      {[](json* j) { (*j)["more"] = 1; }, "profile: has a key that no profile has"},
      {[](json* j) { (*j)["format"] = "x"; }, "format: this is no profile"},
      {[](json* j) { (*j)["format_version"] = 2; }, "2 is not supported"},
      {[](json* j) { (*j)["threads"] = 0; }, "profile.threads: must be an integer from 1"},
      {[](json* j) { (*j)["threads"] = 1.5; }, "profile.threads: must be an integer from 1"},
      {[](json* j) { (*j)["machine"] = 7; }, "profile.machine: must be a string"},
      {[](json* j) { (*j)["passes"] = json::object(); }, "profile.passes: must be an array"},
      {[](json* j) { (*j)["passes"][1] = 3; }, "passes[1]: must be an object"},
      {[](json* j) { (*j)["passes"][1]["ms"] = 0; }, "passes[1].ms: must be a number"},
      {[](json* j) { (*j)["passes"][1]["ms"] = "1"; }, "passes[1].ms: must be a number"},
      {[](json* j) { (*j)["passes"][1]["rows"] = 3; }, "passes[1].rows: are fewer than the samples"},
      {[](json* j) { (*j)["passes"][0]["role"] = "x"; }, "passes[0].role: must be target, verify or draft"},
      {[](json* j) { (*j)["passes"][2]["drafter"] = "nobody"; }, "passes[2].drafter: is none of the profile's drafters"},
      {[](json* j) { (*j)["passes"][0]["drafter"] = "self"; }, "passes[0]: has a key"},
      {[](json* j) { (*j)["drafters"][1]["name"] = "self"; }, "drafters[1].name: is there twice"},
      {[](json* j) { (*j)["drafters"][1]["name"] = "a b"; }, "drafters[1].name: is no drafter's name"},
      {[](json* j) { (*j)["drafters"][1]["shape"] = ""; }, "drafters[1].shape: is empty"},
      {[](json* j) { (*j)["fits"].erase(1); }, "profile.fits: must be none, or one a drafter"},
      {[](json* j) { std::swap((*j)["fits"][0], (*j)["fits"][1]); }, "fits[0].drafter: is out of order"},
      {[](json* j) { (*j)["fits"][1]["verify"]["row_ms"] = -1; }, "fits[1].verify.row_ms: must be a number from 0"},
      {[](json* j) { (*j)["fits"][1]["verify"]["overlap"] = 1.01; }, "fits[1].verify.overlap: must be a number from 0 to 1"},
      {[](json* j) { (*j)["fits"][1].erase("draft"); }, "fits[1].draft: is missing"},
      {[](json* j) { (*j)["fits"][1]["draft"]["x"] = 1; }, "fits[1].draft: has a key"},
      {[](json* j) { (*j)["fits"][0]["comm_ms"] = nullptr; }, "fits[0].comm_ms: must be a number"},
  };
  for (const Fault& fault : faults) {
    json j = json::parse(profile_json(example()));
    fault.plant(&j);
    const auto read = parse_profile("p.json", j.dump());
    ASSERT_FALSE(read.ok()) << fault.says;
    EXPECT_TRUE(read.status().message().starts_with("p.json: ")) << read.status().message();
    EXPECT_NE(read.status().message().find(fault.says), std::string::npos) << read.status().message();
  }
  const std::string text = profile_json(example());
  for (size_t size = 0; size + 2 < text.size(); size += 7) EXPECT_FALSE(parse_profile("p", text.substr(0, size)).ok()) << size;
}

// What no fit made, but arithmetic, may have a part of a pass that is of one role alone.
TEST(ProfileText, ARoleMayHaveAPartOfItsOwn) {
  Profile p = example();
  RoleCost& draft = p.fits[0].model.roles[static_cast<size_t>(CostRole::kDraft)];
  const double before = p.fits[0].model.draft_ms(2, 10);
  draft.pass_ms = 1.5;
  EXPECT_DOUBLE_EQ(p.fits[0].model.draft_ms(2, 10), before + 1.5);
  const auto read = parse_profile("p.json", profile_json(p));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().fits[0].model.role(CostRole::kDraft).pass_ms, 1.5);
  EXPECT_EQ(read.value().fits[0].model.role(CostRole::kVerify).pass_ms, 0);
  std::string text = profile_json(example());
  text.replace(text.find("\"overlap\""), 0, "\"pass_ms\": -1, ");
  EXPECT_FALSE(parse_profile("p.json", text).ok());
}

// Of every shape that the text says in full.
TEST(ProfileText, LogitsHaveTheirShareByTheShape) {
  Profile p = example();
  p.subject.target = "qwen2 layers=2 hidden=8 intermediate=10 heads=4 kv_heads=1 head_dim=2 vocab=100";
  p.subject.drafters[1].shape = "qwen2 layers=1 hidden=4 intermediate=2 heads=2 kv_heads=2 head_dim=2 vocab=100 4-bit";
  const auto read = parse_profile("p.json", profile_json(p));
  ASSERT_TRUE(read.ok()) << read.status().message();
  const CostModel &self = read.value().fits[0].model, &small = read.value().fits[1].model;
  const double target = 800.0 / (2 * (2 * 64 + 2 * 16 + 3 * 80) + 800), drafter = 400.0 / (2 * 16 + 2 * 16 + 3 * 8 + 400);
  for (const CostModel* model : {&self, &small}) {
    EXPECT_DOUBLE_EQ(model->role(CostRole::kTarget).shares.logits, target);
    EXPECT_DOUBLE_EQ(model->role(CostRole::kVerify).shares.logits, target);
  }
  EXPECT_DOUBLE_EQ(small.role(CostRole::kDraft).shares.logits, drafter);
  EXPECT_EQ(self.role(CostRole::kDraft).shares.logits, 0) << "its shape says nothing";

  // Of a mixture of experts, what a token runs: 2 of them, 6 wide, in two layers of three.
  const std::string mixture = "qwen3_moe layers=3 hidden=8 intermediate=10 heads=4 kv_heads=1 head_dim=2 vocab=100";
  const double experts = 800.0 / (3 * (2 * 64 + 2 * 16) + 240 + 2 * 3 * 8 * 12 + 800);
  const struct {
    std::string shape;
    double share;
  } shapes[] = {{mixture + " experts=4 of_token=2 expert_intermediate=6 dense_layers=1", experts},
                {mixture + " experts=4 of_token=2 expert_intermediate=6 dense_layers=1 4-bit", experts},
                {mixture + " experts=4 of_token=2 expert_intermediate=6", 0},
                {mixture + " experts=4 of_token=0 expert_intermediate=6 dense_layers=1", 0},
                {mixture + " experts=4 of_token=2 expert_intermediate=6 dense_layers=1025", 0},
                {mixture + " experts=4 of_token=2 expert_intermediate=6 dense_layers=-1", 0},
                {"qwen2 layers=999999999 hidden=8 intermediate=10 heads=4 kv_heads=1 head_dim=2 vocab=100", 0}};
  for (const auto& [shape, share] : shapes) {
    p.subject.target = shape;
    const auto of_mixture = parse_profile("p.json", profile_json(p));
    ASSERT_TRUE(of_mixture.ok()) << of_mixture.status().message();
    EXPECT_DOUBLE_EQ(of_mixture.value().fits[0].model.role(CostRole::kTarget).shares.logits, share) << shape;
  }
}

TEST(ProfileText, TimesOfSomethingElseAreRefused) {
  const Profile p = example();
  ProfileSubject engine = p.subject;
  engine.drafters = {{"small", "qwen2 layers=0"}, {"ngram", ""}};
  const auto costs = costs_of(p, "p.json", engine);
  ASSERT_TRUE(costs.ok()) << costs.status().message();
  ASSERT_EQ(costs.value().size(), 2u);
  EXPECT_EQ(costs.value()[0].draft_ms(4, 100), p.fits[1].model.draft_ms(4, 100));
  EXPECT_EQ(costs.value()[1].draft_ms(4, 100), 0);
  EXPECT_GT(costs.value()[1].verify_ms(4, 8, 100), 0);
  struct Change {
    std::function<void(ProfileSubject*)> make;
    const char* says;
  };
  const std::vector<Change> changes = {
      {[](ProfileSubject* s) { s->machine = "B"; }, "p.json: machine: the profile is of 'A \"quoted\" machine', not of 'B'"},
      {[](ProfileSubject* s) { s->isa = "cpu-amx"; }, "p.json: isa: the profile is of 'cpu-scalar', not of 'cpu-amx'"},
      {[](ProfileSubject* s) { s->threads = 4; }, "p.json: threads: the profile is of '3', not of '4'"},
      {[](ProfileSubject* s) { s->target = "T"; }, "p.json: target: the profile is of 'qwen2 layers=1', not of 'T'"},
      {[](ProfileSubject* s) { s->drafters[0].shape = "S"; },
       "p.json: drafter small: the profile is of 'qwen2 layers=0', not of 'S'"},
      {[](ProfileSubject* s) { s->drafters[0].name = "other"; }, "p.json: drafters: the profile has no drafter 'other'"},
  };
  for (const Change& change : changes) {
    ProfileSubject other = engine;
    change.make(&other);
    const auto refused = costs_of(p, "p.json", other);
    ASSERT_FALSE(refused.ok()) << change.says;
    EXPECT_EQ(refused.status().code(), StatusCode::kBadInput);
    EXPECT_EQ(refused.status().message(), change.says);
  }
  Profile part = p;
  part.fits.clear();
  EXPECT_EQ(costs_of(part, "p.json", engine).status().message(), "p.json: fits: there are none: the profile is not complete");
}

// ---- The sweep -------------------------------------------------------------------------------------------------------------

ProfilerOptions small_sweep(const TinyModel& target, const TinyModel& drafter) {
  return {.model = target.path(),
          .num_threads = 1,
          .drafters = {{"small", drafter.path()}},
          .max_batch = 4,
          .max_context = 100,
          .seconds = 1e9};
}

std::unique_ptr<Profiler> profiler_of(const ProfilerOptions& options) {
  auto profiler = Profiler::create(options);
  EXPECT_TRUE(profiler.ok()) << profiler.status().message();
  return std::move(profiler.value());
}

TEST_F(ProfileFile, ASweepThatWasInterruptedGoesOn) {
  const TinyModel target, drafter({.hidden_size = 64, .seed = 2});
  const ProfilerOptions options = small_sweep(target, drafter);
  // 3 batches x 2 contexts: the target, 4 verifications, 2 levels of 2 drafters.
  const size_t num_shapes = 3 * 2 * (1 + 4 + 2 * 2), num_visits = Profiler::kVisits * num_shapes;
  Profile part;
  {
    const auto profiler = profiler_of(options);
    ASSERT_TRUE(profiler->plan().ok());
    ASSERT_EQ(profiler->num_planned(), num_visits);
    for (size_t i = 0; i < num_shapes + 10; ++i) profiler->step();
    part = profiler->profile();
  }
  const auto other_sweep = [&](int32_t batch, int32_t context, std::vector<DrafterModel> drafters) {
    ProfilerOptions o = options;
    o.max_batch = batch, o.max_context = context, o.drafters = std::move(drafters);
    return profiler_of(o)->resume(part);
  };
  EXPECT_FALSE(other_sweep(8, 100, options.drafters).ok());
  EXPECT_FALSE(other_sweep(4, 101, options.drafters).ok());
  EXPECT_FALSE(other_sweep(4, 100, {}).ok());
  EXPECT_FALSE(other_sweep(4, 100, {{"small", target.path()}}).ok());

  const auto profiler = profiler_of(options);
  ASSERT_TRUE(profiler->resume(part).ok());
  ASSERT_TRUE(profiler->plan().ok());
  EXPECT_EQ(profiler->num_planned(), num_visits - num_shapes - 10);
  while (!profiler->done()) profiler->step();
  EXPECT_EQ(profiler->num_left_out(), 0u);
  EXPECT_EQ(profiler->seconds_left(), 0);
  ASSERT_TRUE(profiler->fit().ok());
  const Profile& p = profiler->profile();
  EXPECT_EQ(p.passes.size(), num_visits);
  EXPECT_EQ(medians_of(p.passes).size(), num_shapes);
  for (const TimedPass& pass : p.passes) {
    EXPECT_EQ(std::count_if(p.passes.begin(), p.passes.end(), [&](const auto& other) { return same_shape(pass, other); }),
              Profiler::kVisits);
  }
  EXPECT_EQ(p.passes.front().point.ms, part.passes.front().point.ms);
  ASSERT_EQ(p.fits.size(), 2u);
  EXPECT_EQ(profiler->calibration_goodness()[1][static_cast<size_t>(CostRole::kDraft)].points, 12);
  for (const TimedPass& pass : p.passes) EXPECT_TRUE(std::isfinite(pass.point.ms) && pass.point.ms > 0);
  const auto again = parse_profile("p", profile_json(p));
  ASSERT_TRUE(again.ok()) << again.status().message();
  expect_equal(p, again.value());
}

// The slowest shapes go first, and some always stay.
TEST_F(ProfileFile, ASweepKeepsWithinItsTime) {
  const TinyModel target, drafter({.seed = 2});
  ProfilerOptions options = small_sweep(target, drafter);
  options.seconds = 0;
  const auto profiler = profiler_of(options);
  ASSERT_TRUE(profiler->plan().ok());
  EXPECT_EQ(profiler->num_planned(), size_t{Profiler::kVisits});
  EXPECT_EQ(profiler->num_left_out(), 53u);
}

TEST_F(ProfileFile, SweepsThatCannotBeAreRefused) {
  const TinyModel target, drafter;
  const auto refused = [&](int32_t batch, int32_t context) {
    ProfilerOptions options = small_sweep(target, drafter);
    options.max_batch = batch, options.max_context = context;
    const auto profiler = Profiler::create(options);
    return profiler.ok() ? std::string() : profiler.status().message();
  };
  EXPECT_EQ(refused(4, 1008), "");
  EXPECT_EQ(refused(4, 1009), "max-context must be at most 1008, for the model's sake");
  EXPECT_EQ(refused(2, 100), "max-batch and max-context leave fewer than 6 shapes: raise one of them");
}

// ---- An engine with a profile
// ------------------------------------------------------------------------------------------------

TEST_F(ProfileFile, AnEngineTakesItsOwnProfileOnly) {
  const TinyModel target, drafter({.seed = 2});
  const auto profiler = profiler_of(small_sweep(target, drafter));
  ASSERT_TRUE(profiler->plan().ok());
  while (!profiler->done()) profiler->step();
  ASSERT_TRUE(profiler->fit().ok());
  ASSERT_TRUE(save_profile(profiler->profile(), path("p.json")).ok());

  const std::string small = "small=model:" + drafter.path();
  const char* drafters[] = {small.c_str()};
  const std::string profile = path("p.json");
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = target.path().c_str();
  options.max_batch = 4;
  options.num_threads = 1;
  options.kv_bytes = target.kv_bytes(64);
  options.drafters = drafters;
  options.num_drafters = 1;
  options.policy = "fixed:small+ngram+self:2";
  options.profile_path = profile.c_str();
  otr_engine* engine = nullptr;
  ASSERT_EQ(otr_engine_create(&options, &engine), OTR_OK) << otr_last_error(nullptr);
  otr_engine_destroy(engine);

  const std::string quantised = "small=w4:" + drafter.path();
  drafters[0] = quantised.c_str();
  EXPECT_EQ(otr_engine_create(&options, &engine), OTR_BAD_INPUT);
  EXPECT_NE(std::string(otr_last_error(nullptr)).find("4-bit"), std::string::npos) << otr_last_error(nullptr);
  drafters[0] = small.c_str();
  options.num_threads = 2;
  EXPECT_EQ(otr_engine_create(&options, &engine), OTR_BAD_INPUT);
  EXPECT_EQ(std::string(otr_last_error(nullptr)), profile + ": threads: the profile is of '1', not of '2'");
  options.num_threads = 1;
  const std::string none = path("none.json");
  options.profile_path = none.c_str();
  EXPECT_EQ(otr_engine_create(&options, &engine), OTR_IO_ERROR);
  // A program that was built before there were profiles.
  options.struct_size = offsetof(otr_engine_options, profile_path);
  EXPECT_EQ(otr_engine_create(&options, &engine), OTR_OK) << otr_last_error(nullptr);
  otr_engine_destroy(engine);
}

}  // namespace
}  // namespace otr
