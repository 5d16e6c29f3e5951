// The tokenizer against the `tokenizers` package on many generated texts and sequences of ids; make_tokenizer_hashes.py makes
// the file and says what is in it.
#include <cstdlib>

#include "loader/tokenizer.h"
#include "loader/xxh64.h"
#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

const char* const kTokenizers[] = {"/tinymath/target/tokenizer.json", "/tokenizer/tokenizer.json"};

struct Hashes {
  std::vector<std::string> texts;
  std::vector<uint32_t> of_texts[2], of_sequences[2];  // by tokenizer

  // Another file than the repository's may be named, to compare with other seeds.
  static Hashes load() {
    const char* other = std::getenv("OUTRIDER_TOKENIZER_HASHES");
    const std::string file = read_whole(other ? other : OUTRIDER_TEST_DATA "/tokenizer/hashes.bin");
    size_t at = 0;
    const auto take = [&](auto value) {
      EXPECT_LE(at + sizeof value, file.size());
      if (at + sizeof value <= file.size()) std::memcpy(&value, file.data() + at, sizeof value);
      at += sizeof value;
      return value;
    };
    Hashes hashes;
    hashes.texts.resize(take(uint32_t{0}));
    for (std::string& text : hashes.texts) {
      text.resize(take(uint16_t{0}));
      text = file.substr(at, text.size());
      at += text.size();
    }
    for (auto& all : hashes.of_texts) {
      for (size_t i = 0; i < hashes.texts.size(); ++i) all.push_back(take(uint32_t{0}));
    }
    const uint32_t num_sequences = take(uint32_t{0});
    for (auto& all : hashes.of_sequences) {
      for (uint32_t i = 0; i < num_sequences; ++i) all.push_back(take(uint32_t{0}));
    }
    EXPECT_EQ(at, file.size());
    return hashes;
  }
};

uint32_t hashed(const std::string& bytes) { return static_cast<uint32_t>(xxh64(bytes.data(), bytes.size())); }

Tokenizer loaded(const char* name) {
  auto tokenizer = Tokenizer::load(std::string(OUTRIDER_TEST_DATA) + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer.value());
}

uint64_t splitmix64(uint64_t& state) {
  uint64_t word = state += 0x9e3779b97f4a7c15u;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
  word = (word ^ word >> 27) * 0x94d049bb133111ebu;
  return word ^ word >> 31;
}

// The same ids as in make_tokenizer_hashes.py.
std::vector<int32_t> sequence(uint64_t index, int32_t vocab_size) {
  std::vector<int32_t> ids(1 + splitmix64(index) % 14);
  for (int32_t& id : ids) {
    const uint64_t word = splitmix64(index), below = word % 10 < 7 ? 256 : static_cast<uint64_t>(vocab_size) + 5;
    id = static_cast<int32_t>((word >> 32) % below);
  }
  return ids;
}

TEST(TokenizerHashes, TextsEncodeAndDecodeAsThePackageDoes) {
  const Hashes hashes = Hashes::load();
  ASSERT_GE(hashes.texts.size(), 10'000u);
  for (size_t k = 0; k < std::size(kTokenizers); ++k) {
    const Tokenizer tokenizer = loaded(kTokenizers[k]);
    for (size_t i = 0; i < hashes.texts.size(); ++i) {
      const auto ids = tokenizer.encode(hashes.texts[i]);
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      const std::string all = bytes_of_values(ids.value()) + '\xff' + tokenizer.decode(ids.value(), false) + '\xff' +
                              tokenizer.decode(ids.value(), true);
      EXPECT_EQ(hashed(all), hashes.of_texts[k][i])
          << kTokenizers[k] << " text " << i << ": " << testing::PrintToString(hashes.texts[i]);
    }
  }
}

TEST(TokenizerHashes, SequencesDecodeAsThePackageDoes) {
  const Hashes hashes = Hashes::load();
  for (size_t k = 0; k < std::size(kTokenizers); ++k) {
    const Tokenizer tokenizer = loaded(kTokenizers[k]);
    ASSERT_GE(hashes.of_sequences[k].size(), 2'000u);
    for (size_t i = 0; i < hashes.of_sequences[k].size(); ++i) {
      const std::vector<int32_t> ids = sequence(i, tokenizer.vocab_size());
      EXPECT_EQ(hashed(tokenizer.decode(ids, false)), hashes.of_sequences[k][i])
          << kTokenizers[k] << " ids " << testing::PrintToString(ids);
    }
  }
}

}  // namespace
}  // namespace otr
