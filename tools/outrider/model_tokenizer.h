// The tokenizer that comes with a model, folder or .otr file.
#pragma once

#include <memory>
#include <string>

#include "loader/tokenizer.h"

namespace otr::cli {

// Null if the model has none: prompts must then be token ids. Throws Failure (bad input) for one that cannot be used.
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::string& model);

}  // namespace otr::cli
