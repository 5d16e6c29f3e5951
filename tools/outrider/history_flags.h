// The flags --history FILE and --history-content WHAT, of the commands whose engine keeps a history: the file is read at the
// start if it is there, and written at the end.
//
// Thread safety: values.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/outrider.h"
#include "tools/outrider/failure.h"
#include "tools/outrider/flags.h"

namespace otr::cli {

extern const std::vector<Flag> kHistoryFlagTable;

class HistoryFlags {
 public:
  // What an engine says of a path that it was given.
  struct Answer {
    otr_status status = OTR_OK;
    std::string error;
  };
  using Call = std::function<Answer(const std::string& path)>;

  // Throws Failure: a content that there is not or that has no file, a path that is not a file's, or beside which nothing can
  // be written.
  explicit HistoryFlags(const Flags& flags);

  // Without --history the options stay as they are, and load() and save() do nothing.
  void set(otr_engine_options* options) const;
  // Throws Failure if the file is of another kind or version, or was not read: it must not be overwritten at the end. One that
  // is damaged costs speed alone, and is told on stderr; one that is not there is none yet.
  void load(const Call& call) const;
  // Why it could not be written; nullopt if it was. The command has more to write before it fails.
  [[nodiscard]] std::optional<Failure> save(const Call& call) const;
  void add_settings(nlohmann::ordered_json* settings) const;  // for --stats

 private:
  std::string path_, content_;
};

}  // namespace otr::cli
