#include "loader/weight_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/base/element.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "loader/checkpoint.h"
#include "loader/inflated_tensors.h"
#include "loader/item_status.h"
#include "loader/otr_file.h"
#include "loader/parallel_status.h"
#include "loader/weight_names.h"

namespace otr {
namespace {

// What a thread holds at once: half of a 1 MB second-level cache, with what it is packed to. And what it does in one go: enough
// that two threads seldom first touch one huge page together, which both would clear.
constexpr int64_t kStepBytes = 256 << 10, kTaskBytes = 2 << 20;

using Place = std::pair<std::string_view, uint64_t>;  // file, and bytes into it

Place place_of(const Checkpoint& checkpoint, const std::string& tensor) {
  const TensorInfo* info = checkpoint.find(tensor);
  return {checkpoint.file_of(tensor), info != nullptr ? info->begin : 0};
}
Place place_of(const InflatedTensors&, const std::string& tensor) { return {tensor, 0}; }

// Of tensors that are read by rows: Checkpoint, InflatedTensors.
template <typename Tensors>
class RowsSource final : public WeightSource {
 public:
  explicit RowsSource(Tensors tensors) : tensors_(std::move(tensors)) {}

  Status read(std::span<const WeightTarget> targets, ThreadPool& pool) override {
    std::vector<RowTask> tasks;
    int64_t most_elements = 0;  // of a step
    for (const WeightTarget& target : targets) {
      add_tasks(target, &tasks);
      const WeightPiece& piece = *target.piece;
      if (piece.kind == PieceKind::kLinear)
        most_elements = std::max(most_elements, int64_t{step_rows(piece)} * piece.in_features);
    }
    std::sort(tasks.begin(), tasks.end(), [](const RowTask& a, const RowTask& b) { return a.place < b.place; });
    // One buffer a thread, made here: an allocation that fails must not fail on a pool thread.
    std::vector<std::vector<Element>> rows(static_cast<size_t>(pool.num_threads()));
    for (auto& r : rows) r.resize(static_cast<size_t>(most_elements));
    return parallel_status(pool, static_cast<int>(tasks.size()), [&](int task, int thread) {
      return run(tasks[static_cast<size_t>(task)], rows[static_cast<size_t>(thread)].data());
    });
  }

  int64_t converted_tensors() const override { return tensors_.converted_tensors(); }

 private:
  // Rows of a target, whole blocks of a linear one.
  struct RowTask {
    const WeightTarget* target;
    int32_t first_row, num_rows;
    Place place;
  };

  // Whole blocks, at least one.
  static int32_t rows_of(const WeightPiece& piece, int64_t bytes) {
    const int64_t block_bytes = int64_t{kLinearBlockN} * piece.in_features * static_cast<int64_t>(sizeof(Element));
    return static_cast<int32_t>(std::max<int64_t>(1, bytes / block_bytes)) * kLinearBlockN;
  }
  static int32_t step_rows(const WeightPiece& piece) { return std::min(rows_of(piece, kStepBytes), piece.out_features); }

  void add_tasks(const WeightTarget& target, std::vector<RowTask>* tasks) const {
    const WeightPiece& piece = *target.piece;
    const std::string& tensor = piece.parts.front().tensor;
    const auto [file, begin] = place_of(tensors_, tensor);
    const int32_t rows = piece.kind == PieceKind::kVector ? piece.out_features : rows_of(piece, kTaskBytes);
    for (int64_t row = 0; row < piece.out_features; row += rows) {
      const uint64_t offset = static_cast<uint64_t>(row * piece.in_features) * sizeof(Element);
      const int32_t first = static_cast<int32_t>(row);
      tasks->push_back({&target, first, std::min(rows, piece.out_features - first), {file, begin + offset}});
    }
  }

  Status run(const RowTask& task, Element* rows) const {
    const WeightPiece& piece = *task.target->piece;
    if (piece.kind == PieceKind::kVector) return read_vector(piece, static_cast<float*>(task.target->out));
    Element* out = static_cast<Element*>(task.target->out);
    if (piece.kind == PieceKind::kMatrix) {
      return read_rows(piece, task.first_row, task.num_rows, out + int64_t{task.first_row} * piece.in_features);
    }
    const int32_t end = task.first_row + task.num_rows, step = step_rows(piece);
    for (int32_t first = task.first_row; first < end; first += step) {
      const int32_t count = std::min(step, end - first);
      if (piece.in_turns) {
        OTR_RETURN_IF_ERROR(read_turns(piece, first, count, rows, out));
        continue;
      }
      OTR_RETURN_IF_ERROR(read_rows(piece, first, count, rows));
      for (int32_t row = 0; row < count; row += kLinearBlockN) {
        linear_pack_block(rows + int64_t{row} * piece.in_features, std::min(kLinearBlockN, count - row), piece.in_features,
                          out + linear_packed_index(first + row, 0, piece.in_features));
      }
    }
    return {};
  }

  // Blocks of rows [first, first + count) of two parts that take turns, in `out`: half of the rows are of either part.
  Status read_turns(const WeightPiece& piece, int32_t first, int32_t count, Element* rows, Element* out) const {
    const int32_t size = piece.parts[0].out_features, begin = std::min(first / 2, size),
                  end = std::min((first + count) / 2, size);
    const int64_t width = piece.in_features;
    for (size_t part = 0; part < 2 && begin < end; ++part) {
      OTR_RETURN_IF_ERROR(tensors_.read_rows(piece.parts[part].tensor, std::array<int64_t, 2>{size, width}, begin, end - begin,
                                             rows + static_cast<int64_t>(part) * count / 2 * width));
    }
    for (int32_t block = 0; block < count / kLinearBlockN; ++block) {
      const int32_t row = block * kLinearTileN, left = std::max(0, end - begin - row);
      linear_pack_halves(rows + row * width, rows + (count / 2 + row) * width, std::min(left, kLinearTileN), piece.in_features,
                         out + linear_packed_index(first + int64_t{block} * kLinearBlockN, 0, width));
    }
    return {};
  }

  // Rows [first, first + count) of the stacked parts.
  Status read_rows(const WeightPiece& piece, int32_t first, int32_t count, Element* out) const {
    int32_t part_begin = 0;
    for (const PiecePart& part : piece.parts) {
      const int32_t begin = std::max(first, part_begin), end = std::min(first + count, part_begin + part.out_features);
      if (begin < end) {
        OTR_RETURN_IF_ERROR(tensors_.read_rows(part.tensor, std::array<int64_t, 2>{part.out_features, piece.in_features},
                                               begin - part_begin, end - begin, out));
        out += int64_t{end - begin} * piece.in_features;
      }
      part_begin += part.out_features;
    }
    return {};
  }

  Status read_vector(const WeightPiece& piece, float* out) const {
    for (const PiecePart& part : piece.parts) {
      OTR_RETURN_IF_ERROR(tensors_.read_as_float(part.tensor, std::array<int64_t, 1>{part.out_features}, out));
      out += part.out_features;
    }
    return {};
  }

  Tensors tensors_;
};

uint64_t piece_bytes(const WeightPiece& piece) {
  return static_cast<uint64_t>(piece.elements()) * (piece.kind == PieceKind::kVector ? sizeof(float) : sizeof(Element));
}

class OtrSource final : public WeightSource {
 public:
  explicit OtrSource(OtrFile file) : file_(std::move(file)) {}

  // Every piece there, of the right size, and nothing else.
  Status check(const WeightPlan& plan) const {
    for (const WeightPiece& piece : plan.pieces) {
      const OtrItem* item = file_.weight_item(piece.name);
      if (item == nullptr) return bad_item(file_.path(), piece.name, "missing");
      if (item->bytes != piece_bytes(piece)) {
        return bad_item(
            file_.path(), piece.name,
            "has " + std::to_string(item->bytes) + " bytes; config.json asks for " + std::to_string(piece_bytes(piece)));
      }
    }
    if (file_.num_weights() != plan.pieces.size())
      return bad_input(file_.path() + ": holds weights that config.json does not ask for");
    return {};
  }

  Status read(std::span<const WeightTarget> targets, ThreadPool& pool) override {
    std::vector<OtrRead> reads;
    for (const WeightTarget& t : targets) reads.push_back({file_.weight_item(t.piece->name), t.piece->name, t.out});
    return file_.read(reads, pool);
  }

  int64_t converted_tensors() const override { return 0; }

 private:
  OtrFile file_;
};

Result<OpenModel> open_otr(const std::string& path) {
  OTR_ASSIGN_OR_RETURN(OtrFile file, OtrFile::open(path));
  OTR_ASSIGN_OR_RETURN(const std::string config_text, file.read_text("config.json"));
  OTR_ASSIGN_OR_RETURN(const std::string generation_text, file.read_text("generation_config.json"));
  OTR_ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(path, config_text, generation_text));
  auto source = std::make_unique<OtrSource>(std::move(file));
  OTR_RETURN_IF_ERROR(source->check(weight_plan(config)));
  return OpenModel{std::move(config), std::move(source)};
}

}  // namespace

Result<OpenModel> open_model(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode)) return open_otr(path);
  OTR_ASSIGN_OR_RETURN(ModelConfig config, load_model_config(path));
  if (InflatedTensors::is_there(path)) {
    OTR_ASSIGN_OR_RETURN(InflatedTensors tensors, InflatedTensors::open(path, config));
    return OpenModel{std::move(config), std::make_unique<RowsSource<InflatedTensors>>(std::move(tensors))};
  }
  OTR_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(path));
  OTR_RETURN_IF_ERROR(validate_tensors(config, checkpoint));
  return OpenModel{std::move(config), std::make_unique<RowsSource<Checkpoint>>(std::move(checkpoint))};
}

}  // namespace otr
