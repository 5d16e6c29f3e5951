// attention: decoding (a row of each sequence), the same for a group of samples that share their prompt, verification (8
// drafted rows of one, or 8 and three paths of 4 that leave them) and prefill (512 rows of one, or all its 4096), at the end of
// contexts of 128 … 32768 keys. Flops are of the keys that a row sees. Layers and sequences are rotated: keys and values come
// from memory.
#include <string>
#include <vector>

#include "bench/attention_operands.h"
#include "bench/suite.h"

namespace otr::bench {
namespace {

constexpr AttentionShape kShapes[] = {{"decode", 1, 1, 128},      {"decode", 1, 1, 1024},    {"decode", 1, 1, 8192},
                                      {"decode", 1, 1, 32768},    {"decode", 16, 1, 128},    {"decode", 16, 1, 1024},
                                      {"decode", 16, 1, 8192},    {"decode", 1, 1, 4160},    {"group", 8, 1, 4160, 4096},
                                      {"verify", 1, 8, 1024},     {"verify", 1, 8, 8192},    {"prefill", 1, 512, 512},
                                      {"prefill", 1, 512, 2048},  {"prefill", 1, 512, 8192}, {"prefill", 1, 512, 32768},
                                      {"prefill", 1, 4096, 4096}, {"verify", 1, 17, 1041},   {"paths", 1, 8, 1030, 0, 3}};

// All query heads on one KV head: fewer heads than threads. The same layers with their heads dealt out to four.
constexpr ModelShape kOneKvHead = {"qwen2.5-7b-quarter", 3584, 18944, 28, 7, 1, 128, 152064, true, false};

Work make_attention(Suite& suite, const ModelShape& m, const AttentionShape& s) {
  auto operands = std::make_shared<AttentionOperands>(suite, m, s);
  Work work;
  work.bytes = operands->kv_bytes() + operands->row_bytes();
  work.cached_bytes = operands->row_bytes();
  work.flops = operands->flops();
  work.run = [&suite, operands](int64_t call) { operands->run(suite, call); };
  work.spoil = [operands] { operands->spoil(); };
  work.hash = [operands] { return operands->hash(); };
  work.verify = [&suite, operands] { return operands->verify(suite); };
  return work;
}

}  // namespace

void add_attention_cases(Suite& suite) {
  std::vector<ModelShape> models(std::begin(kModels), std::end(kModels));
  models.push_back(kOneKvHead);
  for (const ModelShape& m : models) {
    for (const AttentionShape& s : kShapes) {
      const std::string rows = std::string("/rows:") + std::to_string(s.num_rows());
      suite.add(std::string("attention/") + m.name + "/" + s.kind + rows + "/context:" + std::to_string(s.context),
                [&suite, m, s] { return make_attention(suite, m, s); });
    }
  }
}

}  // namespace otr::bench
