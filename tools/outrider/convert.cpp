// outrider convert: a Hugging Face folder as one .otr file, in the layout that the CPU kernels read.
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/element.h"
#include "kernels/base/thread_pool.h"
#include "loader/file.h"
#include "loader/otr_file.h"
#include "loader/weight_source.h"
#include "tools/outrider/commands.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"
#include "tools/outrider/model_tokenizer.h"
#include "tools/outrider/named_files.h"
#include "tools/outrider/progress_bar.h"
#include "tools/outrider/status_failure.h"

namespace otr::cli {
namespace {

constexpr const char* kUsage =
    "Usage: outrider convert MODEL -o FILE.otr [--jobs N] [--small | --no-compress] [--verify]\n\nWrites a model folder as one "
    ".otr file.\n";
constexpr const char* kNotes =
    "\nFILE appears only when it is complete and on disk. Every command takes it where it takes a folder.\n"
    "Exit codes: 0, 2 usage, 3 a model that cannot be used, 4 a file that cannot be written, or a failed --verify: an older "
    "file stays then.\n";
constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

uint64_t piece_bytes(const WeightPiece& piece) {
  return static_cast<uint64_t>(piece.elements()) * (piece.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element));
}

// Small weights are coded for size: how quickly they are read does not matter.
OtrCoding coding_of(const WeightPiece& piece, bool small) {
  constexpr size_t kLarge = size_t{1} << 20;
  if (piece.kind == PieceKind::kVector) return OtrCoding::kPlain;
  return small || piece_bytes(piece) < kLarge ? OtrCoding::kPlanes : OtrCoding::kNibbles;
}

// Reads everything back from the file of this name, and compares it with the folder.
Status verify_otr(const std::string& name, OpenModel& model, const WeightPlan& plan, ThreadPool& pool) {
  OTR_ASSIGN_OR_RETURN(OpenModel written, open_model(name));
  std::vector<uint8_t> expected, found;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const WeightPiece& piece = plan.pieces[i];
    expected.resize(piece_bytes(piece));
    found.resize(expected.size());
    OTR_RETURN_IF_ERROR(model.weights->read(piece, expected.data(), pool));
    OTR_RETURN_IF_ERROR(written.weights->read(piece, found.data(), pool));
    if (expected != found) return bad_input(name + ": " + piece.name + ": differs from the folder");
    show_percent("verifying", i + 1, plan.pieces.size());
  }
  return {};
}

void write_otr(const std::string& folder, const std::string& path, const Flags& flags, OpenModel& model, const WeightPlan& plan,
               ThreadPool& pool) {
  const bool compress = !flags.given("no-compress"), small = flags.given("small");
  std::vector<std::pair<const char*, std::string>> files;
  std::vector<OtrPlanned> items;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json"}) {
    const std::string file = join_path(folder, name);
    if (!path_exists(file)) continue;
    files.emplace_back(name, check(read_text_file(file, kMaxTextBytes)));
    items.push_back({name, files.back().second.size()});
  }
  for (const WeightPiece& piece : plan.pieces) items.push_back({piece.name, piece_bytes(piece)});
  OtrWriter writer = check(OtrWriter::create(path, items, compress));
  for (const auto& [name, text] : files) check(writer.add_file(name, text, pool));
  std::vector<uint8_t> data;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const WeightPiece& piece = plan.pieces[i];
    data.resize(piece_bytes(piece));
    check(model.weights->read(piece, data.data(), pool));
    check(writer.add_weight(piece.name, data.data(), data.size(), coding_of(piece, small), pool));
    show_percent("converting", i + 1, plan.pieces.size());
  }
  if (!flags.given("verify")) return check(writer.finish());
  check(writer.finish([&](const std::string& name) -> Status {
    const Status status = verify_otr(name, model, plan, pool);
    if (status.ok()) return {};
    return {StatusCode::kIoError, "--verify: " + status.message() + "; nothing is written to " + path};
  }));
}

// What a file is made of. (An older .otr file may lie beside it.)
std::vector<ReadFile> files_of_model(const std::string& folder) {
  std::vector<ReadFile> files;
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(folder, none)) {
    if (file.path().extension() != ".otr") files.push_back({"the model's", file.path()});
  }
  return files;
}

uint64_t file_size(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

}  // namespace

int convert_command(int argc, char** argv) {
  const Flag table[] = {
      {"o", "FILE.otr", "the file to write (required)"},
      {"jobs", "N", "threads (default: one per CPU that affinity and the container's quota allow)"},
      {"small", nullptr, "compress the weights to two thirds instead of three quarters; loading takes longer"},
      {"no-compress", nullptr, "store the weights as they are"},
      {"verify", nullptr, "read the file back and compare it"}};
  if (printed_help(table, argc, argv, kUsage, kNotes)) return kExitOk;
  const Flags flags(table, argc, argv, /*max_positional=*/1);
  if (flags.positional().empty()) throw Failure(kExitUsage, "MODEL is required");
  const std::string folder = flags.positional().front(), path = flags.required("o");
  ThreadPool pool(flags.given("jobs") ? int_flag("jobs", flags.required("jobs"), 1) : 0);

  if (looks_like_otr(folder)) throw Failure(kExitBadInput, folder + ": is an .otr file already");
  const Stopwatch watch;
  refuse_shared_files(flags, {}, {"o"}, files_of_model(folder));
  OpenModel model = check_model(open_model(folder));
  load_model_tokenizer(folder);  // a file whose tokenizer no command takes is not worth writing
  const WeightPlan plan = weight_plan(model.config);
  if (flags.given("small") && flags.given("no-compress"))
    throw Failure(kExitUsage, "--small and --no-compress exclude each other");
  write_otr(folder, path, flags, model, plan, pool);
  uint64_t raw = 0;
  for (const WeightPiece& piece : plan.pieces) raw += piece_bytes(piece);
  std::printf("%s: %llu bytes, %.1f %% of the weights' %llu, in %.2f s%s\n", path.c_str(),
              static_cast<unsigned long long>(file_size(path)),
              100.0 * static_cast<double>(file_size(path)) / static_cast<double>(raw), static_cast<unsigned long long>(raw),
              watch.seconds(), flags.given("verify") ? ", verified" : "");
  return kExitOk;
}

}  // namespace otr::cli
