#include "loader/weight_source.h"

#include "kernels/base/thread_pool.h"
#include "loader/checkpoint.h"
#include "loader/inflated_tensors.h"
#include "loader/weight_names.h"
#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

const std::string kTinymath = std::string(OUTRIDER_TEST_DATA) + "/tinymath/drafter";  // tied, bf16

std::vector<TestTensor> tinymath_tensors() {
  const auto checkpoint = Checkpoint::open(kTinymath);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::vector<TestTensor> tensors;
  for (const std::string_view name : checkpoint.value().names()) {
    const TensorInfo& info = *checkpoint.value().find(name);
    std::vector<Element> values(static_cast<size_t>(info.num_elements()));
    EXPECT_TRUE(checkpoint.value().read_as_element(name, info.shape, values.data()).ok());
    tensors.push_back({std::string(name), "BF16", info.shape, bytes_of_values(values)});
  }
  return tensors;
}

// tinymath's drafter with an lm_head.weight: the embedding's copy but for the lowest bit of element `wrong`.
void write_with_head(const TempFolder& folder, int64_t wrong) {
  std::vector<TestTensor> tensors = tinymath_tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name != kEmbeddingWeight) continue;
    TestTensor head = tensors[i];
    head.name = std::string(kLmHeadWeight);
    if (wrong >= 0) head.bytes[static_cast<size_t>(wrong) * 2] ^= 1;
    tensors.push_back(std::move(head));
    break;
  }
  folder.write("config.json", read_whole(kTinymath + "/config.json"));
  folder.write("model.safetensors", safetensors_bytes(tensors));
}

std::string refusal(const TempFolder& folder) {
  return (folder / "model.safetensors") +
         ": lm_head.weight: differs from model.embed_tokens.weight, but config.json's tie_word_embeddings";
}

constexpr int64_t kLast = 465 * 96 - 1;  // element of the embedding

TEST(WeightSource, ATiedModelsHeadIsComparedWithTheEmbedding) {
  ThreadPool pool(2);
  for (const int64_t wrong : {int64_t{-1}, int64_t{0}, kLast}) {
    SCOPED_TRACE(wrong);
    const TempFolder folder;
    write_with_head(folder, wrong);
    auto model = open_model(folder.path());
    ASSERT_TRUE(model.ok()) << model.status().message();
    auto plain = open_model(kTinymath);
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    for (const WeightPiece& piece : weight_plan(model.value().config).pieces) {
      const size_t bytes =
          static_cast<size_t>(piece.elements()) * (piece.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element));
      std::string found(bytes, '\0'), expected(bytes, '\0');
      const Status status = model.value().weights->read(piece, found.data(), pool);
      if (wrong >= 0 && piece.name == "lm_head") {
        expect_error(status, StatusCode::kBadInput, {refusal(folder)});
        continue;
      }
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(plain.value().weights->read(piece, expected.data(), pool).ok());
      EXPECT_EQ(found, expected) << piece.name;
    }
  }
}

// Whose own head is another tensor, as long as its config.json says so.
TEST(WeightSource, AnUntiedModelsHeadIsItsOwn) {
  const TempFolder folder;
  write_with_head(folder, kLast);
  std::string config = read_whole(kTinymath + "/config.json");
  const std::string tied = "\"tie_word_embeddings\": true";
  const size_t at = config.find(tied);
  ASSERT_NE(at, config.npos);
  folder.write("config.json", config.replace(at, tied.size(), "\"tie_word_embeddings\": false"));
  auto model = open_model(folder.path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  ThreadPool pool(2);
  for (const WeightPiece& piece : weight_plan(model.value().config).pieces) {
    std::string found(static_cast<size_t>(piece.elements()) * sizeof(float), '\0');
    EXPECT_TRUE(model.value().weights->read(piece, found.data(), pool).ok()) << piece.name;
  }
}

TEST(WeightSource, ARecipesSourceIsComparedToo) {
  const Result<ModelConfig> narrow = load_model_config(kTinymath);
  ASSERT_TRUE(narrow.ok());
  const Result<ModelConfig> wide = inflated_config(narrow.value(), {384, 512, 2, 3, 1, 32, 465, true});
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  for (const int64_t wrong : {int64_t{-1}, kLast}) {
    const TempFolder source, recipe;
    write_with_head(source, wrong);
    recipe.write("inflate.json", "{\"source\":\"" + source.path() + "\"}");
    const auto made = InflatedTensors::open(recipe.path(), wide.value());
    if (wrong < 0) {
      EXPECT_TRUE(made.ok()) << made.status().message();
    } else {
      expect_error(made.status(), StatusCode::kBadInput, {refusal(source)});
    }
  }
}

TEST(WeightSource, RefusesAnAdapter) {
  const TempFolder folder;
  write_with_head(folder, -1);
  folder.write("adapter_config.json", "{}");
  expect_error(open_model(folder.path()).status(), StatusCode::kUnsupported, {folder / "adapter_config.json", "merge it"});
}

}  // namespace
}  // namespace otr
