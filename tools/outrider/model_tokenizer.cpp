#include "tools/outrider/model_tokenizer.h"

#include "loader/file.h"
#include "loader/otr_file.h"
#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

constexpr const char* kFile = "tokenizer.json";

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw Failure(kExitBadInput, result.status().message());
  return std::move(result.value());
}

}  // namespace

std::unique_ptr<Tokenizer> load_model_tokenizer(const std::string& model) {
  if (looks_like_otr(model)) {
    const OtrFile file = value_or_throw(OtrFile::open(model));
    if (file.file_item(kFile) == nullptr) return nullptr;
    const std::string text = value_or_throw(file.read_text(kFile));
    return std::make_unique<Tokenizer>(value_or_throw(Tokenizer::parse(model + ": " + kFile, text)));
  }
  const std::string path = join_path(model, kFile);
  if (!path_exists(path)) return nullptr;
  return std::make_unique<Tokenizer>(value_or_throw(Tokenizer::load(path)));
}

}  // namespace otr::cli
