#include "tests/runtime/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>

namespace golden {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

// CRC-32 (as zlib's) of the checkpoint's safetensors files in the order of their names.
uint32_t weights_crc(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  uint32_t crc = ~0u;
  for (const fs::path& file : files) {
    for (const char byte : read_file(file)) {
      crc ^= static_cast<unsigned char>(byte);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1u ? 0xedb88320u : 0u);
    }
  }
  return ~crc;
}

struct EngineDeleter {
  void operator()(otr_engine* engine) const { otr_engine_destroy(engine); }
};

}  // namespace

Model load(const std::string& name) {
  const fs::path data = OUTRIDER_TEST_DATA;
  Model model{name, name == "tinymath-target" ? data / "tinymath" / "target" : data / "golden" / name, {}, {}, {}};
  const std::string bytes = read_file(data / "golden" / (name + ".bin"));
  size_t offset = 0;
  const auto take = [&](void* out, size_t size) {
    if (size > bytes.size() - offset) throw std::runtime_error(name + ".bin: truncated");
    std::memcpy(out, bytes.data() + offset, size);
    offset += size;
  };
  char magic[8];
  uint32_t crc, num_sequences, num_tokens;
  take(magic, sizeof magic);
  take(&crc, sizeof crc);
  take(&num_sequences, sizeof num_sequences);
  if (std::memcmp(magic, "OTRGOLD1", sizeof magic) != 0) throw std::runtime_error(name + ".bin: not a golden file");
  if (crc != weights_crc(model.folder)) {
    throw std::runtime_error(name + ".bin was made from other weights: run tests/data/golden/make_golden.py " + name);
  }
  for (uint32_t i = 0; i < num_sequences; ++i) {
    take(&num_tokens, sizeof num_tokens);
    if (num_tokens > bytes.size()) throw std::runtime_error(name + ".bin: truncated");
    take(model.token_ids.emplace_back(num_tokens).data(), num_tokens * sizeof(int32_t));
    take(model.float32.emplace_back(num_tokens).data(), num_tokens * sizeof(float));
    take(model.bfloat16.emplace_back(num_tokens).data(), num_tokens * sizeof(float));
  }
  if (offset != bytes.size()) throw std::runtime_error(name + ".bin: bytes after the last sequence");
  return model;
}

void keep_positions(Model* model, size_t positions) {
  size_t kept = 0, count = 0;
  while (count < model->token_ids.size() && kept < positions) kept += model->token_ids[count++].size() - 1;
  model->token_ids.resize(count);
  model->float32.resize(count);
  model->bfloat16.resize(count);
}

EditedCheckpoint::EditedCheckpoint(const Model& model, const std::string& from, const std::string& to) {
  std::string config = read_file(model.folder / "config.json");
  const size_t at = config.find(from);
  if (at == std::string::npos) throw std::runtime_error(model.name + "/config.json has no " + from);
  std::string pattern = (fs::temp_directory_path() / "outrider-golden-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a directory like " + pattern);
  folder_ = pattern;
  fs::copy(model.folder, folder_, fs::copy_options::recursive);
  std::ofstream(folder_ / "config.json") << config.replace(at, from.size(), to);
}

EditedCheckpoint::~EditedCheckpoint() { fs::remove_all(folder_); }

Scores score(const Model& model, const char* isa) {
  const std::string folder = model.folder.string();
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = folder.c_str();
  options.isa = isa;
  options.kv_bytes = uint64_t{64} << 20;
  otr_engine* created = nullptr;
  otr_status status = otr_engine_create(&options, &created);
  if (status != OTR_OK) return {status, otr_last_error(nullptr), {}};
  const std::unique_ptr<otr_engine, EngineDeleter> engine(created);

  for (size_t i = 0; i < model.token_ids.size(); ++i) {
    otr_score_request request;
    otr_score_request_init(&request, sizeof request);
    request.token_ids = model.token_ids[i].data();
    request.num_tokens = model.token_ids[i].size();
    request.tag = i;
    uint64_t group = 0;
    status = otr_score(engine.get(), &request, &group);
    if (status != OTR_OK) return {status, otr_last_error(engine.get()), {}};
  }
  Scores scores{OTR_OK, "", Logprobs(model.token_ids.size())};
  for (size_t i = 0; i < model.token_ids.size(); ++i) {
    otr_result* result = nullptr;
    status = otr_wait(engine.get(), 300'000, &result);
    if (status != OTR_OK) return {status, otr_last_error(engine.get()), {}};
    otr_result_view view;
    otr_result_get(result, &view, sizeof view);
    if (view.finish_reason == OTR_FINISH_SCORE && view.tag < scores.raw_logprobs.size()) {
      scores.raw_logprobs[view.tag].assign(view.raw_logprobs, view.raw_logprobs + view.num_tokens);
    } else {
      scores.message += std::string(otr_finish_reason_text(view.finish_reason)) + ": " + view.error + "\n";
    }
    otr_result_destroy(result);
  }
  return scores;
}

Error error_of(const Model& model, const Logprobs& logprobs) {
  Error error;
  std::vector<double> differences;
  for (size_t s = 0; s < model.float32.size(); ++s) {
    const std::vector<float>&reference = model.float32[s], &ours = logprobs[s];
    const bool well_formed = ours.size() == reference.size() && std::isnan(ours[0]);
    for (size_t t = 1; t < reference.size(); ++t) {
      const bool finite = well_formed && std::isfinite(ours[t]);
      const double difference =
          finite ? std::fabs(double{ours[t]} - double{reference[t]}) : std::numeric_limits<double>::infinity();
      if (difference > error.max) {
        error.max = difference;
        error.worst_sequence = s;
        error.worst_position = t;
      }
      error.mean += difference;
      differences.push_back(difference);
    }
  }
  error.positions = differences.size();
  error.mean /= static_cast<double>(differences.size());
  std::sort(differences.begin(), differences.end());
  error.p999 = differences[(differences.size() * 999 + 999) / 1000 - 1];  // the smallest that 99.9 % do not exceed
  return error;
}

std::string worst(const Model& model, const Error& error, const Logprobs& logprobs) {
  const size_t s = error.worst_sequence, t = error.worst_position;
  const double ours = t < logprobs[s].size() ? double{logprobs[s][t]} : std::numeric_limits<double>::quiet_NaN();
  char text[200];
  std::snprintf(text, sizeof text, "sequence %zu position %zu (token %d): ours %.7g, float32 %.7g, transformers bf16 %.7g", s,
                t, static_cast<int>(model.token_ids[s][t]), ours, double{model.float32[s][t]}, double{model.bfloat16[s][t]});
  return text;
}

}  // namespace golden
