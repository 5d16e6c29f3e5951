#include "runtime/profiler.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/base/clock.h"
#include "runtime/model_drafter.h"
#include "runtime/outrider.h"
#include "runtime/self_drafter.h"

namespace otr {
namespace {

constexpr int32_t kDepths[] = {1, 3, 7, Profiler::kDeepestVerify};
constexpr int32_t kTreeRows = 4;         // rows a sample of a wide level
constexpr int32_t kMostDraftRows = 512;  // as an engine's tick
constexpr double kShortSeconds = 0.03;   // passes shorter than this run three times a visit, the first for the caches
constexpr int32_t kShortRuns = 3;

ProgramBucket bucket_of(const ProfilerOptions& o) {
  const int32_t rows = o.max_batch + kMostDraftRows;
  return {.max_rows = rows, .max_logit_rows = rows};
}

// Pages for what a pass reads, and one for each row it may write and each sample.
int32_t pages_for(const ProfilerOptions& o, const ModelConfig& config) {
  const KvLayout layout{.num_layers = config.num_layers, .num_kv_heads = config.num_kv_heads, .head_dim = config.head_dim};
  const int64_t read = std::min<int64_t>(PassTimer::kReadBytes / layout.page_bytes() + 2,
                                         int64_t{o.max_batch} * (o.max_context / kPageTokens + 1));
  return static_cast<int32_t>(read) + bucket_of(o).max_rows + o.max_batch + 1;
}

std::vector<int32_t> batches_of(const ProfilerOptions& o) {
  std::vector<int32_t> batches;
  for (int32_t batch = 1; batch < o.max_batch; batch *= 2) batches.push_back(batch);
  batches.push_back(o.max_batch);
  return batches;
}

std::vector<int32_t> contexts_of(const ProfilerOptions& o) {
  std::vector<int32_t> contexts;
  for (int32_t context = 64; context < o.max_context; context *= 4) contexts.push_back(context);
  contexts.push_back(o.max_context);
  return contexts;
}

}  // namespace

Profiler::Profiler(const ProfilerOptions& options, std::unique_ptr<Device> device)
    : options_(options), device_(std::move(device)) {
  profile_.version = otr_version();
  profile_.commit = build_commit();
  profile_.subject = subject_of(*device_);
  profile_.max_batch = options.max_batch;
  profile_.max_context = options.max_context;
}

Profiler::~Profiler() = default;

Result<std::unique_ptr<Profiler>> Profiler::create(const ProfilerOptions& options) {
  OTR_ASSIGN_OR_RETURN(const OpenModel model, open_model(options.model));
  if (options.max_context > most_context(model.config)) {
    return invalid_argument("max-context must be at most " + std::to_string(most_context(model.config)) +
                            ", for the model's sake");
  }
  constexpr size_t kFewestShapes = 6;  // of a role: parameters of its cost
  if (batches_of(options).size() * contexts_of(options).size() < kFewestShapes) {
    return invalid_argument("max-batch and max-context leave fewer than 6 shapes: raise one of them");
  }
  DeviceOptions device_options;
  device_options.isa = options.isa;
  device_options.num_threads = options.num_threads;
  device_options.target = {.path = options.model, .num_pages = pages_for(options, model.config), .bucket = bucket_of(options)};
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::create(device_options));
  std::unique_ptr<Profiler> p(new Profiler(options, std::move(device)));
  const TreeDrafterOptions tree{.number = 0,
                                .top_k = kTreeRows,
                                .max_nodes = kMostDraftRows,
                                .max_batch = options.max_batch,
                                .max_draft_rows = kMostDraftRows,
                                .chunk = 0};
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<TreeDrafter> self, SelfDrafter::create(tree, p->device_->target(), p->no_sequences_));
  p->add_drafter("self", std::move(self));
  for (const DrafterModel& d : options.drafters) {
    OTR_ASSIGN_OR_RETURN(std::unique_ptr<TreeDrafter> drafter, ModelDrafter::create(tree, d, *p->device_, p->no_sequences_));
    p->add_drafter(d.name, std::move(drafter));
  }
  return p;
}

void Profiler::add_drafter(const std::string& name, std::unique_ptr<TreeDrafter> drafter) {
  profile_.subject.drafters.push_back({name, drafter_shape(drafter->timed_program(), device_->target())});
  drafters_.push_back(std::move(drafter));
}

TimedProgram Profiler::timed(int32_t drafter) const {
  if (drafter == TimedPass::kTarget) return {&device_->target(), &device_->target().program()};
  return drafters_[static_cast<size_t>(drafter)]->timed_program();
}

Status Profiler::resume(const Profile& part) {
  const auto refuse = [](const std::string& reason) { return invalid_argument("it is of another sweep: " + reason); };
  if (const std::string reason = mismatch(part.subject, profile_.subject); !reason.empty()) return refuse(reason);
  if (part.subject != profile_.subject) return refuse("it has other drafters, or in another order");
  if (part.max_batch != options_.max_batch || part.max_context != options_.max_context) {
    return refuse("it goes to batch " + std::to_string(part.max_batch) + " and context " + std::to_string(part.max_context));
  }
  profile_.passes = part.passes;
  return {};
}

void Profiler::add_shape(int32_t drafter, CostRole role, const PassShape& pass, std::vector<Shape>* shapes) const {
  if (timer_.fits(timed(drafter), role, pass)) shapes->push_back({drafter, role, pass, 1, 0});
}

std::vector<Profiler::Shape> Profiler::all_shapes() const {
  std::vector<Shape> shapes;
  for (const int32_t b : batches_of(options_)) {
    for (const int32_t c : contexts_of(options_)) {
      const double batch = b, context = c;
      add_shape(TimedPass::kTarget, CostRole::kTarget, {batch, batch, context}, &shapes);
      for (const int32_t depth : kDepths)
        add_shape(TimedPass::kTarget, CostRole::kVerify, {batch, batch * (depth + 1), context}, &shapes);
      for (size_t d = 0; d < drafters_.size(); ++d) {
        add_shape(static_cast<int32_t>(d), CostRole::kDraft, {batch, batch, context}, &shapes);
        add_shape(static_cast<int32_t>(d), CostRole::kDraft, {batch, kTreeRows * batch, context}, &shapes);
      }
    }
  }
  return shapes;
}

int32_t Profiler::visits_of(const Shape& shape) const {
  return static_cast<int32_t>(std::count_if(profile_.passes.begin(), profile_.passes.end(), [&](const TimedPass& pass) {
    return same_shape(pass, {shape.drafter, {shape.role, shape.pass, 0}});
  }));
}

Status Profiler::plan() {
  std::vector<std::optional<TimedProgram>> programs;
  for (const auto& drafter : drafters_) programs.push_back(drafter->timed_program());
  OTR_ASSIGN_OR_RETURN(calibrated_,
                       calibrate_costs(timed(TimedPass::kTarget), programs, {.max_batch = options_.max_batch}, &timer_));
  std::vector<Shape> shapes = all_shapes();
  keep_within_time(&shapes);
  std::mt19937 random(1);
  for (int32_t round = 0; round < kVisits; ++round) {
    const size_t begin = planned_.size();
    for (const Shape& shape : shapes) {
      if (visits_of(shape) <= round) planned_.push_back(shape);
    }
    if (round == 0) first_round_ = planned_.size();
    for (size_t i = planned_.size(); i > begin + 1; --i) std::swap(planned_[i - 1], planned_[begin + random() % (i - begin)]);
  }
  return {};
}

// Sets every shape's runs, and drops the slowest ones where all of them would take too long.
void Profiler::keep_within_time(std::vector<Shape>* shapes) {
  double sum = 0;
  for (Shape& shape : *shapes) {
    const CostModel& costs = calibrated_[shape.drafter == TimedPass::kTarget ? 0 : static_cast<size_t>(shape.drafter)];
    const double seconds = 1e-3 * costs.time_ms(shape.role, shape.pass);
    shape.runs = seconds < kShortSeconds ? kShortRuns : 1;
    shape.seconds = shape.runs * seconds;
    sum += kVisits * shape.seconds;
  }
  std::stable_sort(shapes->begin(), shapes->end(), [](const Shape& a, const Shape& b) { return a.seconds < b.seconds; });
  while (shapes->size() > 1 && sum > options_.seconds) {
    sum -= kVisits * shapes->back().seconds;
    shapes->pop_back();
    ++num_left_out_;
  }
}

void Profiler::step() {
  const Shape& shape = planned_[next_];
  const Stopwatch time;
  const double ms = timer_.time_ms(timed(shape.drafter), shape.role, shape.pass, shape.runs);
  profile_.passes.push_back({shape.drafter, {shape.role, shape.pass, ms}});
  taken_ += time.seconds();
  foretold_ += shape.seconds;
  ++next_;
}

double Profiler::seconds_left() const {
  double seconds = 0;
  for (size_t i = next_; i < planned_.size(); ++i) seconds += planned_[i].seconds;
  return foretold_ > 0 ? seconds * taken_ / foretold_ : seconds;
}

Status Profiler::fit() {
  std::vector<ShapeShares> shares;
  for (const auto& drafter : drafters_) shares.push_back(shape_shares(drafter->timed_program().model->config()));
  OTR_ASSIGN_OR_RETURN(profile_.fits, fit_costs(medians_of(profile_.passes), shape_shares(device_->target().config()), shares));
  for (CostFit& fit : profile_.fits) fit.residuals.clear();
  return {};
}

std::vector<std::array<Goodness, kNumCostRoles>> Profiler::calibration_goodness() const {
  std::vector<std::array<Goodness, kNumCostRoles>> all;
  for (size_t d = 0; d < calibrated_.size(); ++d) {
    std::vector<CostPoint> points;
    for (const TimedPass& pass : medians_of(profile_.passes)) {
      if (pass.drafter == TimedPass::kTarget || static_cast<size_t>(pass.drafter) == d) points.push_back(pass.point);
    }
    all.push_back(goodness_of(calibrated_[d], points));
  }
  return all;
}

}  // namespace otr
