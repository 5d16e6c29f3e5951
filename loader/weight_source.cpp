#include "loader/weight_source.h"

#include <sys/stat.h>

#include <array>

#include "kernels/base/element.h"
#include "kernels/base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "loader/checkpoint.h"
#include "loader/item_status.h"
#include "loader/otr_file.h"
#include "loader/weight_names.h"

namespace otr {
namespace {

class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  Status read(const WeightPiece& piece, void* out, ThreadPool& pool) override {
    switch (piece.kind) {
      case PieceKind::kVector: return read_vector(piece, static_cast<float*>(out));
      case PieceKind::kMatrix: return read_rows(piece, static_cast<Element*>(out));
      case PieceKind::kLinear: break;
    }
    row_major_.resize(static_cast<size_t>(int64_t{piece.out_features} * piece.in_features));
    OTR_RETURN_IF_ERROR(read_rows(piece, row_major_.data()));
    linear_pack(row_major_.data(), piece.out_features, piece.in_features, static_cast<Element*>(out), pool);
    return {};
  }

  int64_t converted_tensors() const override { return checkpoint_.converted_tensors(); }

 private:
  // Stacks the parts' rows.
  Status read_rows(const WeightPiece& piece, Element* out) {
    for (const PiecePart& part : piece.parts) {
      OTR_RETURN_IF_ERROR(checkpoint_.read_as_element(part.tensor, std::array<int64_t, 2>{part.out_features, piece.in_features}, out));
      out += int64_t{part.out_features} * piece.in_features;
    }
    return {};
  }

  Status read_vector(const WeightPiece& piece, float* out) {
    for (const PiecePart& part : piece.parts) {
      OTR_RETURN_IF_ERROR(checkpoint_.read_as_float(part.tensor, std::array<int64_t, 1>{part.out_features}, out));
      out += part.out_features;
    }
    return {};
  }

  Checkpoint checkpoint_;
  std::vector<Element> row_major_;  // one stacked weight before packing; grows to the largest
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
        return bad_item(file_.path(), piece.name,
                        "has " + std::to_string(item->bytes) + " bytes; config.json asks for " + std::to_string(piece_bytes(piece)));
      }
    }
    if (file_.num_weights() != plan.pieces.size()) return bad_input(file_.path() + ": holds weights that config.json does not ask for");
    return {};
  }

  Status read(const WeightPiece& piece, void* out, ThreadPool& pool) override {
    return file_.read(*file_.weight_item(piece.name), piece.name, out, pool);
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
  OTR_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(path));
  OTR_RETURN_IF_ERROR(validate_tensors(config, checkpoint));
  return OpenModel{std::move(config), std::make_unique<CheckpointSource>(std::move(checkpoint))};
}

}  // namespace otr
