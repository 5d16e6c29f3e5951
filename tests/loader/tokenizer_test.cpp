#include "loader/tokenizer.h"

#include <thread>

#include "loader/json_document.h"
#include "tests/loader/loader_fixture.h"

namespace otr {
namespace {

const std::string kFolder = std::string(OUTRIDER_TEST_DATA) + "/tokenizer/";

// A vocabulary of a, b, c and some merges; the parts in capitals are replaced by tests.
constexpr std::string_view kSmall = R"json({"version":"1.0","truncation":null,"padding":null,
"added_tokens":[{"id":9,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"NFC"},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[
{"type":"Split","pattern":{"Regex":"\\p{L}+|\\s+"},"behavior":"Isolated","invert":false},
{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},
"post_processor":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},
"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"",
"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
"vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4,"abc":5,"aa":6,"cab":7},"merges":["b c",["a","b"],"a bc","a a"]}})json";

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kSmall);
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? ids.value() : std::vector<int32_t>{-1};
}

Tokenizer parsed(std::string_view json) {
  auto tokenizer = Tokenizer::parse("t.json", json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer.value());
}

void expect_refused(std::string_view from, std::string_view to, StatusCode code, const std::vector<std::string>& parts) {
  SCOPED_TRACE(to);
  const auto tokenizer = Tokenizer::parse("t.json", replaced(from, to));
  ASSERT_FALSE(tokenizer.ok());
  expect_error(tokenizer.status(), code, {"t.json: "});
  expect_error(tokenizer.status(), code, parts);
}

std::vector<int32_t> ids_of(JsonValue array) {
  std::vector<int32_t> ids;
  for (JsonValue v = array.first(); v; v = v.next()) ids.push_back(static_cast<int32_t>(v.as_int().value_or(-1)));
  return ids;
}

TEST(Tokenizer, EqualsTheGoldenFile) {
  const auto tokenizer = Tokenizer::load(kFolder + "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto golden = JsonDocument::load(kFolder + "golden.json", 1 << 20);
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const JsonValue encodings = golden.value().root().find("encode"), decodings = golden.value().root().find("decode");
  ASSERT_GE(encodings.size(), 2000u);
  ASSERT_GE(decodings.size(), 500u);
  for (JsonValue entry = encodings.first(); entry; entry = entry.next()) {
    const JsonValue text = entry.first(), ids = text.next(), decoded = ids.next(), plain = decoded.next();
    const std::vector<int32_t> expected = ids_of(ids);
    ASSERT_EQ(encode(tokenizer.value(), text.as_string()), expected) << text.as_string();
    for (const JsonValue& wanted : {decoded, plain}) {
      const bool skip_special = wanted.next() ? false : true;
      ASSERT_EQ(tokenizer.value().decode(expected, skip_special), (wanted.is_null() ? text : wanted).as_string());
    }
  }
  for (JsonValue entry = decodings.first(); entry; entry = entry.next()) {
    ASSERT_EQ(tokenizer.value().decode(ids_of(entry.first()), false), entry.first().next().as_string());
  }
}

TEST(Tokenizer, ReadsTheShippedModels) {
  const std::string path = std::string(OUTRIDER_TEST_DATA) + "/tinymath/target/tokenizer.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto tokenizer = Tokenizer::load(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string text = "What is 12 + 345?\nStep 1: é 🙂 가\u11a7\n";  // U+11A7 composes with no syllable
  const std::vector<int32_t> ids = encode(tokenizer.value(), text + "<|endoftext|>");
  EXPECT_EQ(tokenizer.value().decode(ids, true), text);
  EXPECT_EQ(tokenizer.value().id_of("<|endoftext|>"), ids.back());
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer t = parsed(kSmall);
  EXPECT_EQ(encode(t, ""), std::vector<int32_t>{});
  EXPECT_EQ(encode(t, "abc"), std::vector<int32_t>{5});
  EXPECT_EQ(encode(t, "ab"), std::vector<int32_t>{3});
  EXPECT_EQ(encode(t, "aaaaa"), (std::vector<int32_t>{6, 6, 0}));
  EXPECT_EQ(encode(t, "cab"), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(encode(t, "ab<s>c<s><s>bc"), (std::vector<int32_t>{3, 9, 2, 9, 9, 4}));
  EXPECT_EQ(t.vocab_size(), 10);
  EXPECT_EQ(t.id_of("cab"), 7);
  EXPECT_EQ(t.id_of("<s>"), 9);
  EXPECT_EQ(t.id_of("x"), std::nullopt);
  const Tokenizer whole = parsed(replaced("\"ignore_merges\":false", "\"ignore_merges\":true"));
  EXPECT_EQ(encode(whole, "cab"), std::vector<int32_t>{7});
  EXPECT_EQ(encode(whole, "cabc"), (std::vector<int32_t>{2, 5}));
}

TEST(Tokenizer, DecodeSkipsWhatNamesNoToken) {
  const Tokenizer t = parsed(kSmall);
  const std::vector<int32_t> ids = {-1, 0, 8, 9, 10, 5, INT32_MAX, INT32_MIN};
  EXPECT_EQ(t.decode(ids, false), "a<s>abc");
  EXPECT_EQ(t.decode(ids, true), "aabc");
}

TEST(Tokenizer, RefusesTextItCannotExpress) {
  const Tokenizer t = parsed(kSmall);
  expect_error(t.encode("abd").status(), StatusCode::kBadInput, {"t.json: model.vocab: no token for byte 100"});
  for (const char* bad : {"ab\xff", "ab\x80", "ab\xc3", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xc0\x80"}) {
    expect_error(t.encode(bad).status(), StatusCode::kInvalidArgument, {"invalid UTF-8 at byte 2"});
  }
  expect_error(t.encode(std::string((16 << 20) + 1, 'a')).status(), StatusCode::kInvalidArgument, {"too long"});
}

TEST(Tokenizer, RefusesByNameWhatItDoesNotKnow) {
  const auto expect_unsupported = [](std::string_view from, std::string_view to, const std::vector<std::string>& parts) {
    expect_refused(from, to, StatusCode::kUnsupported, parts);
  };
  expect_unsupported("\"BPE\"", "\"WordPiece\"", {"model: 'WordPiece' is not supported"});
  expect_unsupported("\"NFC\"", "\"NFKC\"", {"normalizer: 'NFKC'"});
  expect_unsupported("\"NFC\"", "\"Sequence\"", {"normalizer: 'Sequence'"});
  expect_unsupported("\"Sequence\"", "\"Whitespace\"", {"pre_tokenizer: 'Whitespace'"});
  expect_unsupported("{\"type\":\"Split\"", "{\"type\":\"Digits\"", {"pre_tokenizer: 'Digits'"});
  expect_unsupported("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", {"decoder: 'Metaspace'"});
  expect_unsupported("\"decoder\":", "\"decoder\":null,\"x\":", {"decoder: 'null'"});
  expect_unsupported("\"Regex\"", "\"String\"", {"pre_tokenizer Split: a pattern other than Regex"});
  expect_unsupported("\"Isolated\"", "\"Removed\"", {"behavior 'Removed'"});
  expect_unsupported("\"invert\":false", "\"invert\":true", {"invert true"});
  expect_unsupported("\"use_regex\":false", "\"use_regex\":true", {"pre_tokenizer ByteLevel: use_regex true"});
  expect_unsupported("\"add_prefix_space\":false,", "", {"add_prefix_space true"});
  expect_unsupported("\"byte_fallback\":false", "\"byte_fallback\":true", {"model: byte_fallback true"});
  expect_unsupported("\"dropout\":null", "\"dropout\":0.1", {"model: dropout"});
  expect_unsupported("\"end_of_word_suffix\":\"\"", "\"end_of_word_suffix\":\"x\"", {"end_of_word_suffix"});
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    const std::string name(flag);
    expect_unsupported(name + "\":false", name + "\":true", {"added_tokens '<s>': " + name + " true"});
  }
  for (const char* regex : {"\\\\w+", "\\\\p{Han}+", "(?<x>a)", "(?>a)", "^a", "a$", "[a[b]]", "[a&&b]", "[\\\\S]",
                            "(*COMMIT)a", "(?R)", "\\\\x41", "a\\\\", "\\\\p{", "[]a]", "a{1}+", "a{,2}", "a{2}?", "a{2}{3}"}) {
    expect_unsupported("\\\\p{L}+|\\\\s+", regex, {"pre_tokenizer Split: ", "is not supported"});
  }
  expect_unsupported("\\\\p{L}+|\\\\s+", "a*", {"pre_tokenizer Split: ", "empty"});
}

TEST(Tokenizer, RefusesWrongContents) {
  const auto expect_bad = [](std::string_view from, std::string_view to, const std::vector<std::string>& parts) {
    expect_refused(from, to, StatusCode::kBadInput, parts);
  };
  expect_bad("\"b\":1", "\"b\":0", {"model.vocab 'b': id 0 is another token's too"});
  expect_bad("\"b\":1", "\"a\":1", {"JSON: duplicate key 'a'"});
  expect_bad("\"b\":1", "\"b\":-1", {"model.vocab 'b': id -1 is outside"});
  expect_bad("\"b\":1", "\"b\":2097152", {"model.vocab 'b': id 2097152 is outside"});
  expect_bad("\"b\":1", "\"b\":1.0", {"model.vocab 'b': its id is missing or not an integer"});
  expect_bad("\"b c\"", "\"b d\"", {"model.merges[0]: token 'd' is not in the vocabulary"});
  expect_bad("\"b c\"", "\"c a\"", {"model.merges[0]: token 'ca' is not in the vocabulary"});
  expect_bad("\"b c\"", "\"bc\"", {"model.merges[0]: 'bc' is not two tokens and one space"});
  expect_bad("\"b c\"", "\"b c c\"", {"model.merges[0]: 'b c c'"});
  expect_bad("\"b c\"", "[\"b\"]", {"model.merges[0]: neither"});
  expect_bad("\"b c\"", "{\"b\":\"b\",\"c\":\"c\"}", {"model.merges[0]: neither"});
  expect_bad("\"a a\"", "\"a b\"", {"model.merges[3]: the pair 'a', 'b' occurs before"});
  expect_bad("\"vocab\"", "\"words\"", {"model.vocab: missing"});
  expect_bad("\"merges\"", "\"words\"", {"model.merges: missing"});
  expect_bad("\"model\"", "\"words\"", {"model: missing"});
  expect_bad("\"id\":9", "\"id\":3", {"added_tokens '<s>': id 3 is another token's too"});
  expect_bad("\"id\":9", "\"id\":9e9", {"added_tokens '<s>': its id is missing"});
  expect_bad("\"content\":\"<s>\"", "\"content\":\"ab\"", {"added_tokens 'ab': id 9, but the vocabulary says 3"});
  expect_bad("\"content\":\"<s>\"", "\"content\":\"\"", {"added_tokens '': 0 bytes"});
  expect_bad("\"content\":\"<s>\"", "\"content\":\"" + std::string(1025, 'x') + "\"", {"1025 bytes"});
  expect_bad("\"added_tokens\":[", "\"added_tokens\":[{\"id\":10,\"content\":\"<s>\"},", {"added_tokens '<s>': occurs twice"});
  expect_bad("\"added_tokens\":[", "\"added_tokens\":[7,", {"added_tokens[0]: content is missing"});
  expect_bad("\"special\":true", "\"special\":1", {"added_tokens '<s>': special must be true or false"});
  expect_bad("\\\\p{L}+|\\\\s+", "(a", {"pre_tokenizer Split: not a regular expression"});
  expect_bad("\\\\p{L}+|\\\\s+", std::string(20'000, 'a'), {"pre_tokenizer Split: an expression of 20000 bytes"});
  expect_error(Tokenizer::parse("t.json", "[]").status(), StatusCode::kBadInput, {"t.json: not a JSON object"});
  expect_error(Tokenizer::parse("t.json", kSmall.substr(0, 900)).status(), StatusCode::kBadInput, {"t.json: JSON: "});
  expect_error(Tokenizer::load(kFolder + "none").status(), StatusCode::kIoError, {kFolder + "none"});
}

// Each of these once took quadratic or exponential time in some tokenizer.
TEST(Tokenizer, HostileTextsTakeBoundedTime) {
  const auto tokenizer = Tokenizer::load(kFolder + "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const double begin = cpu_seconds();
  std::string marks = "a", almost;
  for (int i = 0; i < 150'000; ++i) marks += i % 2 ? "\xcc\xa3" : "\xcc\x81";  // classes 220 and 230 in turn
  for (int i = 0; i < 60'000; ++i) almost += "<|im_";
  for (const std::string& text : {std::string(300'000, 'a'), std::string(300'000, ' '), std::string(300'000, ' ') + "x", marks,
                                  std::string(300'000, '!'), std::string(300'000, '\n'), almost}) {
    const std::vector<int32_t> ids = encode(tokenizer.value(), text);
    EXPECT_EQ(encode(tokenizer.value(), tokenizer.value().decode(ids, false)), ids);
  }
  const Tokenizer exponential = parsed(replaced("\\\\p{L}+|\\\\s+", "(?:a+)+b|c"));
  const auto result = exponential.encode(std::string(2000, 'a'));
  if (!result.ok())
    expect_error(result.status(), StatusCode::kBadInput, {"t.json: pre_tokenizer Split: ", "at byte 0", "limit"});
  EXPECT_LT(cpu_seconds() - begin, 60);
}

TEST(Tokenizer, IsSharedByThreads) {
  const auto tokenizer = Tokenizer::load(kFolder + "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const std::string text = "The cafe\xcc\x81 at 12:30, don't <|im_end|> wait\n\n  x = 3;";
  const std::vector<int32_t> expected = encode(tokenizer.value(), text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) ASSERT_EQ(encode(tokenizer.value(), text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, SurvivesMutations) {
  std::mt19937 random(4);
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto tokenizer = Tokenizer::parse("t.json", mutated(std::string(kSmall), random));
    accepted += tokenizer.ok();
    if (!tokenizer.ok()) {
      EXPECT_TRUE(tokenizer.status().message().starts_with("t.json: ")) << tokenizer.status().message();
      continue;
    }
    const auto ids = tokenizer.value().encode("abc aab<s> cabca\xcc\x81");
    if (ids.ok()) (void)tokenizer.value().decode(ids.value(), false);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 3000);
}

}  // namespace
}  // namespace otr
