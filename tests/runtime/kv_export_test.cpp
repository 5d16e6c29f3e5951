// Pages out of one engine and into another: the same samples, fewer rows; and what does not fit is refused with the reason.
#include "runtime/kv_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "loader/xxh64.h"
#include "tests/runtime/every_path.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

using Bytes = std::vector<std::byte>;

Bytes export_of(const TestEngine& engine, const std::vector<int32_t>& tokens, size_t* covered) {
  size_t size = 0;
  EXPECT_EQ(otr_kv_export(engine.get(), tokens.data(), tokens.size(), nullptr, 0, &size, covered), OTR_INVALID_ARGUMENT);
  Bytes bytes(size);
  EXPECT_EQ(otr_kv_export(engine.get(), tokens.data(), tokens.size(), bytes.data(), bytes.size(), &size, covered), OTR_OK)
      << otr_last_error(engine.get());
  EXPECT_EQ(size, bytes.size());
  return bytes;
}

otr_status import_into(const TestEngine& engine, const Bytes& bytes, size_t* covered) {
  return otr_kv_import(engine.get(), bytes.data(), bytes.size(), covered);
}

// Changes the header and seals it again.
template <typename Change>
Bytes changed(Bytes bytes, const Change& change) {
  KvHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  change(&header);
  header.hash = xxh64(&header, sizeof header - sizeof header.hash);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

class KvExport : public EveryPath {
 protected:
  Request request() const {
    Request r(random_tokens(3, 300, model_.shape().vocab_size));
    r.n = 3;
    r.stream = 9;
    r.sampling.max_new_tokens = 20;
    return r;
  }
  const TinyModel model_{{.num_layers = 2, .num_kv_heads = 2}};
};

TEST_P(KvExport, SamplesAreTheSameAndThePromptIsNotRun) {
  const TestEngine first(model_, setup());
  const Outputs plain = first.run({request()});
  size_t covered = 0;
  const Bytes bytes = export_of(first, request().prompt, &covered);
  EXPECT_EQ(covered, 256u);
  for (const int32_t num_workers : {1, 3}) {
    EngineSetup s = setup();
    s.num_workers = num_workers;
    const TestEngine second(model_, s);
    size_t imported = 0;
    ASSERT_EQ(import_into(second, bytes, &imported), OTR_OK) << otr_last_error(second.get());
    EXPECT_EQ(imported, covered);
    EXPECT_EQ(second.count("kv_pages_in_use"), 0);
    EXPECT_EQ(difference(plain, second.run({request()})), "");
    EXPECT_GE(second.count("prefix_hit_tokens"), 256);  // who moves to another worker finds them there too
    // What came in goes out the same, whatever happened meanwhile.
    EXPECT_EQ(export_of(second, request().prompt, &covered), bytes);
    ASSERT_EQ(import_into(second, bytes, &imported), OTR_OK);  // again: nothing new
    EXPECT_EQ(imported, covered);
  }
}

// The inverse: had the pages no part in the result, changed ones would not show.
TEST_P(KvExport, OtherPagesGiveOtherSamples) {
  const TestEngine first(model_, setup());
  const Outputs plain = first.run({request()});
  size_t covered = 0;
  Bytes bytes = export_of(first, request().prompt, &covered);
  KvIdentity id{.layout = model_.layout(), .isa = GetParam(), .library = otr_version()};
  KvHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  id.weights_digest = header.weights_digest;
  std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(sizeof header + covered * sizeof(int32_t)), bytes.end());
  for (size_t at = sizeof header + covered * sizeof(int32_t); at < bytes.size(); ++at) bytes[at] &= std::byte{0x3f};  // finite
  const std::vector<int32_t> prompt = request().prompt;
  seal_kv(id, std::span(prompt).first(covered), bytes);
  const TestEngine second(model_, setup());
  size_t imported = 0;
  ASSERT_EQ(import_into(second, bytes, &imported), OTR_OK) << otr_last_error(second.get());
  EXPECT_NE(difference(plain, second.run({request()})), "");
}

TEST_P(KvExport, WhatIsNotThereIsEmpty) {
  const TestEngine engine(model_, setup());
  size_t covered = 9;
  const Bytes bytes = export_of(engine, request().prompt, &covered);
  EXPECT_EQ(covered, 0u);
  covered = 9;
  EXPECT_EQ(import_into(engine, bytes, &covered), OTR_OK);
  EXPECT_EQ(covered, 0u);
}

TEST_P(KvExport, ThereIsRoomForTheFirstPagesOnly) {
  const TestEngine first(model_, setup());
  Request r = request();
  r.n = 1;
  const Outputs plain = first.run({r});
  size_t covered = 0, imported = 0;
  const Bytes bytes = export_of(first, r.prompt, &covered);
  EngineSetup s = setup();
  s.num_pages = 3;
  const TestEngine small(model_, s);
  ASSERT_EQ(import_into(small, bytes, &imported), OTR_OK) << otr_last_error(small.get());
  EXPECT_EQ(imported, 192u);
  EXPECT_EQ(small.count("kv_pages_in_use"), 0);
}

OTR_INSTANTIATE_EVERY_PATH(KvExport);

class KvRefusals : public testing::Test {
 protected:
  KvRefusals() {
    Request r(random_tokens(3, 200, 97));
    engine_.run({r});
    bytes_ = export_of(engine_, r.prompt, &covered_);
  }
  void expect_refused(const TestEngine& engine, const Bytes& bytes, otr_status status, const std::string& reason) {
    size_t covered = 77;
    EXPECT_EQ(import_into(engine, bytes, &covered), status) << reason;
    EXPECT_NE(std::string(otr_last_error(engine.get())).find(reason), std::string::npos) << otr_last_error(engine.get());
    EXPECT_EQ(covered, 77u);
  }

  const TinyModel model_;
  const TestEngine engine_{model_};
  size_t covered_ = 0;
  Bytes bytes_;
};

TEST_F(KvRefusals, EveryFlippedByte) {
  ASSERT_EQ(covered_, 192u);
  for (size_t at = 0; at < bytes_.size(); at += at < sizeof(KvHeader) ? 1 : 997) {
    Bytes bad = bytes_;
    bad[at] ^= std::byte{0x10};
    size_t covered = 0;
    EXPECT_EQ(import_into(engine_, bad, &covered), OTR_BAD_INPUT) << at << ": " << otr_last_error(engine_.get());
  }
}

TEST_F(KvRefusals, Cut) {
  for (const size_t size : {size_t{1}, size_t{50}, sizeof(KvHeader), bytes_.size() - 1}) {
    expect_refused(engine_, Bytes(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(size)), OTR_BAD_INPUT, "cut");
  }
}

TEST_F(KvRefusals, OtherModelsPathsWeightsAndVersions) {
  const TinyModel wider({.num_kv_heads = 2}), other({.seed = 2});
  expect_refused(TestEngine(wider), bytes_, OTR_UNSUPPORTED,
                 "another model shape: 1 layers of 1 KV heads of 32; the engine's is 1 layers of 2");
  expect_refused(TestEngine(other), bytes_, OTR_UNSUPPORTED, "another set of weights");
  EngineSetup scalar;
  scalar.isa = "cpu-scalar";
  const TestEngine engine(model_, scalar);
  if (engine_.stats()["isa"] != "cpu-scalar") expect_refused(engine, bytes_, OTR_UNSUPPORTED, "another instruction-set path");
  const auto version = [](KvHeader* h) { std::strcpy(h->library, "0.0.1"); };
  expect_refused(engine_, changed(bytes_, version), OTR_UNSUPPORTED, "another library version: 0.0.1");
  expect_refused(engine_, changed(bytes_, [](KvHeader* h) { h->format = 9; }), OTR_UNSUPPORTED, "format 9");
  expect_refused(engine_, changed(bytes_, [](KvHeader* h) { h->num_tokens = uint64_t{1} << 62; }), OTR_BAD_INPUT, "cut");
  expect_refused(engine_, changed(bytes_, [](KvHeader* h) { h->num_tokens -= 64; }), OTR_BAD_INPUT, "cut");
}

TEST_F(KvRefusals, NewWeightsMakeThemForeign) {
  const int64_t shape[] = {32};
  const std::vector<float> ones(32, 1.0f);
  otr_tensor t;
  otr_tensor_init(&t, sizeof t);
  t.name = "model.norm.weight";
  t.dtype = OTR_DTYPE_F32;
  t.shape = shape;
  t.num_dims = 1;
  t.data = ones.data();
  t.data_bytes = 4 * ones.size();
  ASSERT_EQ(otr_weights_begin(engine_.get(), 7), OTR_OK);
  expect_refused(engine_, bytes_, OTR_BUSY, "being replaced");
  ASSERT_EQ(otr_weights_put(engine_.get(), &t), OTR_OK);
  ASSERT_EQ(otr_weights_commit(engine_.get()), OTR_OK);
  expect_refused(engine_, bytes_, OTR_UNSUPPORTED, "version 0; the engine's is digest");
}

TEST_F(KvRefusals, WhileItRunsAndWhilePaused) {
  Request r(random_tokens(4, 100, 97));
  r.sampling.max_new_tokens = 800;
  r.sampling.ignore_eos = 1;
  const TestEngine alone(model_);
  const Outputs plain = alone.run({r});
  engine_.submit(r, 0);
  size_t covered = 0;
  EXPECT_EQ(import_into(engine_, bytes_, &covered), OTR_OK);
  ASSERT_EQ(otr_pause(engine_.get()), OTR_OK);
  EXPECT_EQ(import_into(engine_, bytes_, &covered), OTR_OK);
  const int64_t ticks = engine_.count("ticks");
  EXPECT_EQ(engine_.count("ticks"), ticks);  // it is still paused
  ASSERT_EQ(otr_resume(engine_.get()), OTR_OK);
  EXPECT_EQ(difference(plain, engine_.collect()), "");
}

}  // namespace
}  // namespace otr
