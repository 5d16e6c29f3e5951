// The .otr container: what is written comes back to the bit, and nothing that is not exactly that loads.
#include "loader/otr_file.h"

#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <set>

#include "kernels/base/element.h"
#include "kernels/base/thread_pool.h"
#include "loader/frame_sum.h"
#include "loader/otr_nibbles.h"
#include "loader/otr_planes.h"
#include "loader/parallel_status.h"
#include "loader/weight_source.h"
#include "loader/xxh64.h"
#include "tests/loader/loader_fixture.h"
#include "tests/runtime/sanitized.h"

namespace otr {
namespace {

// bf16 values as weights have them: exponents in a narrow band, mantissas at random.
std::string weight_like_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& v : values) {
    v = static_cast<uint16_t>((random() & 1u) << 15 | (118 + random() % 6) << 7 | (random() & 127u));
  }
  return bytes_of_values(values);
}

enum class Coding { kQuick, kSmall, kStored };
constexpr Coding kCodings[] = {Coding::kQuick, Coding::kSmall, Coding::kStored};

std::string write_otr(const TempFolder& folder, Coding coding, const std::string& weights, int threads = 2) {
  ThreadPool pool(threads);
  const std::string path = folder / "small.otr";
  auto writer =
      OtrWriter::create(path, std::vector<OtrPlanned>{{"config.json", 8}, {"w", weights.size()}}, coding != Coding::kStored);
  EXPECT_TRUE(writer.ok());
  EXPECT_TRUE(writer.value().add_file("config.json", "{\"a\": 1}", pool).ok());
  EXPECT_TRUE(writer.value()
                  .add_weight("w", weights.data(), weights.size(),
                              coding == Coding::kSmall ? OtrCoding::kPlanes : OtrCoding::kNibbles, pool)
                  .ok());
  EXPECT_TRUE(writer.value().finish().ok());
  return path;
}

// True if the file opens and its weight reads back as `expected`.
bool loads_as(const std::string& path, const std::string& expected) {
  const auto file = OtrFile::open(path);
  if (!file.ok()) return false;
  const OtrItem* item = file.value().weight_item("w");
  if (item == nullptr || item->bytes != expected.size()) return false;
  std::string found(expected.size(), '\0');
  ThreadPool pool(1);
  return file.value().read(*item, "w", found.data(), pool).ok() && found == expected;
}

TEST(Xxh64, KnownAnswers) {
  EXPECT_EQ(xxh64("", 0), 0xEF46DB3751D8E999ull);
  EXPECT_EQ(xxh64("a", 1), 0xD24EC4F1A98C6E5Bull);
  EXPECT_EQ(xxh64("abc", 3), 0x44BC2CF5AD770999ull);
  const std::string long_text = "Nobody inspects the spammish repetition";
  EXPECT_EQ(xxh64(long_text.data(), long_text.size()), 0xFBCEA83C8A378BF1ull);
}

// Bytes 0, 31, 62, … modulo 251: the answers are those of tests/tools/otr_format.py.
TEST(FrameSum, KnownAnswers) {
  std::string bytes(1000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 % 251);
  const std::pair<size_t, uint64_t> answers[] = {{0, 0x9143a1f58a5c14d3ull},  {1, 0xb8c732fdb6c0de75ull},
                                                 {63, 0x1732b67c9f0480eaull}, {64, 0xc27691e27f01f773ull},
                                                 {65, 0x96a331e5bd3ce221ull}, {1000, 0x48e02984b4ee28b2ull}};
  for (const auto& [size, sum] : answers) EXPECT_EQ(frame_sum(bytes.data(), size), sum) << size << " bytes";
  EXPECT_EQ(frame_sum(("x" + bytes).data() + 1, bytes.size()), frame_sum(bytes.data(), bytes.size())) << "at an odd address";
}

TEST(FrameSum, SeesEveryBitAndThePlaceOfAStripe) {
  const std::string good = weight_like_bytes(1030, 13);  // 32 stripes and a rest
  const uint64_t sum = frame_sum(good.data(), good.size());
  std::string bad = good;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(frame_sum(bad.data(), bad.size()), sum) << "bit " << bit;
    bad[bit / 8] = good[bit / 8];
  }
  for (size_t stripe = 1; stripe < 32; ++stripe) {
    std::swap_ranges(bad.begin(), bad.begin() + 64, bad.begin() + static_cast<std::ptrdiff_t>(64 * stripe));
    EXPECT_NE(frame_sum(bad.data(), bad.size()), sum) << "stripes 0 and " << stripe;
    bad = good;
  }
  const std::string zeros(300, '\0');
  std::set<uint64_t> sums;
  for (size_t size = 0; size <= zeros.size(); ++size) sums.insert(frame_sum(zeros.data(), size));
  EXPECT_EQ(sums.size(), zeros.size() + 1);
}

TEST(OtrPlanes, JoinUndoesSplit) {
  const std::string values = weight_like_bytes(1001, 3);
  std::string planes(values.size(), '\0'), joined(values.size(), '\0');
  split_planes(reinterpret_cast<const uint8_t*>(values.data()), values.size(), reinterpret_cast<uint8_t*>(planes.data()));
  join_planes(reinterpret_cast<const uint8_t*>(planes.data()), planes.size(), reinterpret_cast<uint8_t*>(joined.data()));
  EXPECT_NE(planes, values);
  EXPECT_EQ(joined, values);
}

// Values of every kind: what the window of exponents holds, what it does not, and sizes at the edges of a group of 32.
TEST(OtrNibbles, DecodeUndoesEncode) {
  std::mt19937 random(9);
  for (const size_t count :
       {size_t{1}, size_t{2}, size_t{31}, size_t{32}, size_t{33}, size_t{64}, size_t{1000}, size_t{65536}}) {
    for (const uint32_t exception_in : {0u, 100u, 3u, 1u}) {  // one in so many values is anything, or none
      std::string values = weight_like_bytes(count, static_cast<uint32_t>(count));
      for (size_t i = 0; i < count; ++i) {
        if (exception_in != 0 && random() % exception_in == 0) values[2 * i + 1] = static_cast<char>(random());
      }
      const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
      const std::vector<uint8_t> coded = encode_nibbles(bytes, values.size());
      for (const size_t shift : {size_t{0}, size_t{16}, size_t{3}}) {  // aligned destinations are written in another way
        alignas(16) static char decoded[2 * 65536 + 64];
        std::fill(std::begin(decoded), std::end(decoded), 'x');
        ASSERT_TRUE(decode_nibbles(coded.data(), coded.size(), reinterpret_cast<uint8_t*>(decoded + shift), values.size()));
        EXPECT_EQ(std::string_view(decoded, values.size() + shift + 1), std::string(shift, 'x') + values + 'x')
            << count << " values, exceptions " << exception_in << ", shift " << shift;
      }
    }
  }
  // Weights as they are: 12 bits a value, and a header.
  const std::string weights = weight_like_bytes(65536, 10);
  EXPECT_EQ(encode_nibbles(reinterpret_cast<const uint8_t*>(weights.data()), weights.size()).size(),
            8u + weights.size() * 3 / 4);
}

TEST(OtrNibbles, RefusesWhatIsNoCoding) {
  std::string values = weight_like_bytes(100, 11);
  for (const size_t at : {7u, 50u, 99u}) values[2 * at + 1] = 0;  // three exceptions
  const std::vector<uint8_t> good = encode_nibbles(reinterpret_cast<const uint8_t*>(values.data()), values.size());
  ASSERT_EQ(good.size(), 8u + 64 + 100 + 12);
  std::vector<uint8_t> out(values.size());
  const auto accepted = [&](std::vector<uint8_t> coded, const std::function<void(std::vector<uint8_t>*)>& spoil) {
    spoil(&coded);
    coded.shrink_to_fit();  // so that a sanitizer sees a step beyond
    return decode_nibbles(coded.data(), coded.size(), out.data(), out.size());
  };
  EXPECT_TRUE(accepted(good, [](auto*) {}));
  EXPECT_FALSE(accepted(good, [](auto* c) { c->pop_back(); }));
  EXPECT_FALSE(accepted(good, [](auto* c) { c->push_back(0); }));
  EXPECT_FALSE(accepted(good, [](auto* c) { c->resize(7); }));
  EXPECT_FALSE(accepted(good, [](auto* c) { c->clear(); }));
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[0] = 6; }));  // exponents below zero
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[0] = 128; }));
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[2] = 1; }));
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[4] = 4; }));                // one exception too many
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[7] = 0x40; }));             // 2^30 of them
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[c->size() - 3] = 100; }));  // beyond the last value
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[c->size() - 3] = 50; }));   // a position twice
  EXPECT_FALSE(accepted(good, [](auto* c) { (*c)[c->size() - 3] = 10; }));   // not ascending
}

TEST(OtrFile, ReturnsWhatWasWritten) {
  // Two frames, the last one short.
  const std::string weights = weight_like_bytes(kOtrWrittenFrameBytes / 2 + 12345, 1);
  for (const Coding coding : kCodings) {
    const TempFolder folder;
    const std::string path = write_otr(folder, coding, weights);
    EXPECT_TRUE(loads_as(path, weights));
    const auto file = OtrFile::open(path);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file.value().weight_item("w")->frames.size(), 2u);
    EXPECT_EQ(file.value().read_text("config.json").value(), "{\"a\": 1}");
    EXPECT_EQ(file.value().read_text("tokenizer.json").value(), "");
    EXPECT_EQ(file.value().weight_item("v"), nullptr);
    const double share = static_cast<double>(read_whole(path).size()) / static_cast<double>(weights.size());
    EXPECT_LT(share, coding == Coding::kQuick ? 0.752 : coding == Coding::kSmall ? 0.74 : 1.01);
  }
}

// Noise gains nothing from any coding: it is stored, frame by frame.
TEST(OtrFile, NoiseIsStored) {
  std::mt19937 random(12);
  std::string noise(kOtrWrittenFrameBytes + 1000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  for (const Coding coding : kCodings) {
    const TempFolder folder;
    const std::string path = write_otr(folder, coding, noise);
    EXPECT_TRUE(loads_as(path, noise));
    EXPECT_LT(read_whole(path).size(), noise.size() + 1000);
  }
}

TEST(OtrFile, BytesDoNotDependOnThreads) {
  // 67 frames, or 37: more than the 32 that one thread codes at a time, fewer than the 96 of three.
  const std::string weights = weight_like_bytes((kSanitized ? 110 : 200) * kOtrWrittenFrameBytes / 6, 2);
  for (const Coding coding : kCodings) {
    const TempFolder one, three;
    EXPECT_EQ(read_whole(write_otr(one, coding, weights, 1)), read_whole(write_otr(three, coding, weights, 3)));
  }
}

TEST(OtrFile, EveryFlippedBitIsCaught) {
  const std::string weights = weight_like_bytes(2000, 4);
  for (const Coding coding : kCodings) {
    const TempFolder folder;
    const std::string good = read_whole(write_otr(folder, coding, weights));
    ASSERT_TRUE(loads_as(folder / "small.otr", weights));
    uint64_t header_offset = 0;
    std::memcpy(&header_offset, good.data() + 16, sizeof header_offset);
    const std::string path = folder.write("bad.otr", good);
    std::fstream bytes(
        path, std::ios::in | std::ios::out | std::ios::binary);  // in place: a file made anew for each costs a disk's time
    const auto put = [&bytes](size_t at, char c) { bytes.seekp(static_cast<std::streamoff>(at)).put(c).flush(); };
    const auto expect_caught = [&](size_t at, uint32_t bit) {
      put(at, static_cast<char>(good[at] ^ (1 << bit)));
      const auto file = OtrFile::open(path);
      // A flip in a frame shows when that is read; every other one when the file is opened.
      EXPECT_EQ(file.ok(), at >= kOtrPreambleBytes && at < header_offset) << "byte " << at << " bit " << bit;
      const bool text_ok = file.ok() && file.value().read_text("config.json").ok();
      EXPECT_FALSE(text_ok && loads_as(path, weights)) << "byte " << at << " bit " << bit;
      put(at, good[at]);
    };
    std::mt19937 random(5);
    // Every bit of the preamble and the header (under a sanitizer one of every byte), one of every byte of the frames.
    for (size_t at = 0; at < good.size(); ++at) {
      const bool in_frame = at >= kOtrPreambleBytes && at < header_offset;
      if (in_frame || kSanitized) {
        expect_caught(at, random() % 8);
      } else {
        for (uint32_t bit = 0; bit < 8; ++bit) expect_caught(at, bit);
      }
    }
    EXPECT_TRUE(loads_as(path, weights));
  }
}

TEST(OtrFile, CutAndPaddedFilesAreRefused) {
  const TempFolder folder;
  const std::string weights = weight_like_bytes(4000, 6);
  const std::string good = read_whole(write_otr(folder, Coding::kSmall, weights));
  for (size_t size = 0; size < good.size(); size += 1 + size / 50) {
    EXPECT_FALSE(OtrFile::open(folder.write("cut.otr", good.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(OtrFile::open(folder.write("long.otr", good + '\0')).ok());
}

TEST(OtrFile, FaultsAreNamed) {
  const TempFolder folder;
  const std::string good = read_whole(write_otr(folder, Coding::kSmall, weight_like_bytes(4000, 7)));
  expect_error(OtrFile::open(folder.write("short.otr", "OUTRIDER")).status(), StatusCode::kBadInput,
               {"short.otr", "too short"});
  expect_error(OtrFile::open(folder.write("other.otr", std::string(100, 'x'))).status(), StatusCode::kBadInput,
               {"not an .otr file"});
  for (const int other : {1, 2, 4}) {
    std::string version = good;
    version[8] = static_cast<char>(other);
    const uint64_t hash = xxh64(version.data(), 56);
    std::memcpy(version.data() + 56, &hash, sizeof hash);
    expect_error(OtrFile::open(folder.write("other.otr", version)).status(), StatusCode::kUnsupported,
                 {"version " + std::to_string(other), "reads 3"});
  }
  std::string flipped = good;
  flipped[80] = static_cast<char>(flipped[80] ^ 4);
  const auto file = OtrFile::open(folder.write("flip.otr", flipped));
  ASSERT_TRUE(file.ok());
  std::string out(8000, '\0');
  ThreadPool pool(1);
  const Status status = file.value().read(*file.value().weight_item("w"), "w", out.data(), pool);
  const Status text = file.value().read_text("config.json").status();
  EXPECT_TRUE((status.ok() ? text : status).message().find("checksum mismatch") != std::string::npos);
}

// Of several bad frames the first in the file is named, however many threads look.
TEST(OtrFile, TheFirstFaultIsReported) {
  const TempFolder folder;
  const std::string weights = weight_like_bytes(20 * kOtrWrittenFrameBytes, 8);  // values, of two bytes
  std::string bad = read_whole(write_otr(folder, Coding::kSmall, weights));
  const auto good = OtrFile::open(folder / "small.otr");
  ASSERT_TRUE(good.ok());
  const std::vector<OtrFrame>& frames = good.value().weight_item("w")->frames;
  ASSERT_EQ(frames.size(), 40u);
  for (const size_t frame : {size_t{39}, size_t{23}, size_t{7}, size_t{31}}) bad[frames[frame].offset + 100] ^= 1;
  const auto file = OtrFile::open(folder.write("bad.otr", bad));
  ASSERT_TRUE(file.ok());
  std::string out(weights.size(), '\0');
  for (const int threads : {1, 2, 7}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 5; ++repeat) {
      expect_error(file.value().read(*file.value().weight_item("w"), "w", out.data(), pool), StatusCode::kBadInput,
                   {"w: checksum mismatch in the frame at byte " + std::to_string(frames[7].offset)});
    }
  }
}

TEST(ParallelStatus, AnExceptionIsAnErrorToo) {
  ThreadPool pool(3);
  EXPECT_TRUE(parallel_status(pool, 100, [](int, int) { return Status(); }).ok());
  expect_error(parallel_status(pool, 100,
                               [](int task, int) -> Status {
                                 if (task == 60) throw std::bad_alloc();
                                 return task > 70 ? bad_input("late") : Status();
                               }),
               StatusCode::kOutOfMemory, {"out of memory"});
}

TEST(OtrFile, AnUnfinishedWriterLeavesNothing) {
  const TempFolder folder;
  {
    ThreadPool pool(1);
    auto writer = OtrWriter::create(folder / "never.otr", std::vector<OtrPlanned>{{"config.json", 2}}, true);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer.value().add_file("config.json", "{}", pool).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(OtrWriter::create(folder / "no/such/folder/x.otr", {}, true).status().code(), StatusCode::kIoError);
}

// A header beyond the 16 MiB that a model of 93 GB needs.
TEST(OtrFile, ALargeHeaderIsRead) {
  const TempFolder folder;
  const std::string name(size_t{17} << 20, 'w'), path = folder / "large.otr";
  ThreadPool pool(1);
  auto writer = OtrWriter::create(path, std::vector<OtrPlanned>{{name, 2}}, true);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  ASSERT_TRUE(writer.value().add_weight(name, "ab", 2, OtrCoding::kPlain, pool).ok());
  ASSERT_TRUE(writer.value().finish().ok());
  const auto file = OtrFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_NE(file.value().weight_item(name), nullptr);
}

std::vector<OtrPlanned> layers(uint64_t count, uint64_t bytes_each) {
  std::vector<OtrPlanned> items;
  for (uint64_t i = 0; i < count; ++i) items.push_back({"layers." + std::to_string(i) + ".gate_up", bytes_each});
  return items;
}

TEST(OtrWriter, WhatCouldNotBeReadIsNotWritten) {
  const TempFolder folder;
  const std::string path = folder / "vast.otr";
  EXPECT_TRUE(OtrWriter::create(path, layers(80, uint64_t{145'000'000'000} / 80), true).ok());  // Qwen2.5-72B
  // 5 values a frame, 4 an item: 799,920 frames in 80 items have 3,999,924 values, 800,000 more than four million.
  EXPECT_TRUE(OtrWriter::create(path, layers(80, uint64_t{9'999} * kOtrWrittenFrameBytes), true).ok());
  expect_error(OtrWriter::create(path, layers(80, uint64_t{10'000} * kOtrWrittenFrameBytes), true).status(),
               StatusCode::kUnsupported,
               {path + ": too much for one .otr file", "4000324 values in", "and 4000000 values in 41943040 bytes are read"});
  expect_error(OtrWriter::create(path, std::vector<OtrPlanned>{{std::string(kOtrMaxHeaderBytes, 'w'), 1}}, true).status(),
               StatusCode::kUnsupported, {path, "too much for one .otr file"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Never less than what is written, and hardly more: frames that are stored have the longest numbers.
TEST(OtrWriter, TheHeadersSizeIsKnownBefore) {
  const TempFolder folder;
  for (const size_t frames : {1u, 40u}) {
    const std::string weights(frames * kOtrWrittenFrameBytes, 'w'), path = folder / "stored.otr";
    const std::vector<OtrPlanned> items = {{"w", weights.size()}};
    ThreadPool pool(2);
    auto writer = OtrWriter::create(path, items, false);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer.value().add_weight("w", weights.data(), weights.size(), OtrCoding::kNibbles, pool).ok());
    ASSERT_TRUE(writer.value().finish().ok());
    uint64_t raw = 0;
    std::memcpy(&raw, read_whole(path).data() + 32, sizeof raw);
    const OtrHeaderSize most = otr_header_size(items);
    EXPECT_LE(raw, most.bytes);
    EXPECT_GT(raw + 6 * frames, most.bytes);
    EXPECT_EQ(most.values, 8 + 5 * frames);
  }
}

TEST(OpenModel, AnOtrFileGivesTheFoldersWeights) {
  const std::string folder_path = std::string(OUTRIDER_TEST_DATA) + "/tinymath/target";
  ThreadPool pool(2);
  auto folder = open_model(folder_path);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const WeightPlan plan = weight_plan(folder.value().config);
  const TempFolder temporary;
  const std::string path = temporary / "target.otr";
  const auto bytes_of = [](const WeightPiece& p) {
    return static_cast<size_t>(p.elements()) * (p.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element));
  };
  std::vector<std::string> pieces;
  std::vector<OtrPlanned> items;
  for (const char* name : {"config.json", "generation_config.json"})
    items.push_back({name, read_whole(folder_path + "/" + name).size()});
  for (const WeightPiece& piece : plan.pieces) items.push_back({piece.name, bytes_of(piece)});
  {
    auto writer = OtrWriter::create(path, items, true);
    ASSERT_TRUE(writer.ok());
    for (const char* name : {"config.json", "generation_config.json"}) {
      ASSERT_TRUE(writer.value().add_file(name, read_whole(folder_path + "/" + name), pool).ok());
    }
    for (const WeightPiece& piece : plan.pieces) {
      pieces.emplace_back(bytes_of(piece), '\0');
      ASSERT_TRUE(folder.value().weights->read(piece, pieces.back().data(), pool).ok());
      ASSERT_TRUE(writer.value()
                      .add_weight(piece.name, pieces.back().data(), pieces.back().size(),
                                  piece.kind == PieceKind::kVector ? OtrCoding::kPlain : OtrCoding::kNibbles, pool)
                      .ok());
    }
    ASSERT_TRUE(writer.value().finish().ok());
  }
  auto otr = open_model(path);
  ASSERT_TRUE(otr.ok()) << otr.status().message();
  EXPECT_EQ(otr.value().config.hidden_size, folder.value().config.hidden_size);
  EXPECT_EQ(otr.value().config.eos_ids, folder.value().config.eos_ids);
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    std::string found(pieces[i].size(), '\0');
    ASSERT_TRUE(otr.value().weights->read(plan.pieces[i], found.data(), pool).ok());
    EXPECT_EQ(found, pieces[i]) << plan.pieces[i].name;
  }
}

}  // namespace
}  // namespace otr
