// The loop that rollout and score share: read lines, keep the engine supplied, write results in the order of the input.
//
// Memory is bounded by what is outstanding (a few batches) and by finished lines held back until an earlier one is done.
// A pipe as input may be slow or wait for our answers: results are written while no further line has arrived.
// Single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/outrider.h"
#include "tools/outrider/line_reader.h"
#include "tools/outrider/output_file.h"
#include "tools/outrider/progress_bar.h"
#include "tools/outrider/run_checkpoint.h"

namespace otr::cli {

// An accepted line of the input, until its last sample is written. A command's texts are what its output lines begin with.
struct PendingLine {
  std::string id_json;
  std::string prompt_json;  // rollout: prompt_token_ids
  std::string sample_json;  // score: as it was given, or ""
  int32_t num_samples = 1;
  std::vector<std::string> lines;  // of samples 0 … num_samples - 1; "" until finished
  size_t num_written = 0;
  double bytes_per_sample = 0;  // of the input line, for the progress bar
};

class LineCommand {
 public:
  virtual ~LineCommand() = default;
  // Submits the request of a line under `tag`. Throws BadLine, or Failure.
  virtual PendingLine submit(std::string_view text, int64_t line_number, uint64_t tag) = 0;
  // A line that an earlier run submitted, whose samples the engine has. Throws BadLine, or Failure.
  virtual PendingLine known(std::string_view text, int64_t line_number);
  // The output line of a result.
  virtual std::string render(const PendingLine& pending, const otr_result_view& result) const = 0;
};

struct PipelineCounts {
  int64_t num_lines = 0;  // accepted
  int64_t num_bad_lines = 0;
  int64_t num_samples = 0;
  int64_t num_failed_samples = 0;  // finished with an error
  int64_t num_tokens = 0;
  double wall_seconds = 0;

  int exit_code() const;
};

class Pipeline {
 public:
  // `max_outstanding` samples are kept queued in the engine. All are borrowed.
  Pipeline(otr_engine* engine, LineReader* input, OutputFile* output, LineCommand* command, ProgressBar* progress,
           int64_t max_outstanding)
      : engine_(engine),
        input_(input),
        output_(output),
        command_(command),
        progress_(progress),
        max_outstanding_(max_outstanding) {}

  // Keeps a checkpoint while it runs.
  void keep(RunCheckpoint* checkpoint) { checkpoint_ = checkpoint; }
  // Goes on where an earlier run was: reads its lines of the input again. Throws Failure (bad input) if they are others. To be
  // called before run().
  void resume(const RunState& state);

  PipelineCounts run();

 private:
  void feed();
  LineReader::Next read_line(bool may_block, std::string_view* text);
  void restore_line(std::string_view text, uint64_t* next_tag, uint64_t first_tag);
  RunState state() const;
  void take_line(LineReader::Next kind, std::string_view text);
  void take_result();
  void store(const otr_result_view& result);
  void write_finished();
  double fraction_done() const;

  otr_engine* engine_;
  LineReader* input_;
  OutputFile* output_;
  LineCommand* command_;
  ProgressBar* progress_;
  RunCheckpoint* checkpoint_ = nullptr;  // may be null
  int64_t max_outstanding_;

  std::deque<PendingLine> pending_;  // in the order of the input; the first has tag first_tag_
  uint64_t first_tag_ = 0;
  int64_t num_outstanding_ = 0;  // samples submitted and not received
  bool input_ended_ = false;
  int64_t consumed_ = 0;  // bytes of the input that were looked at
  double done_ = 0;       // bytes of the input that are dealt with
  PipelineCounts counts_;
  // Of the input so far, where a checkpoint is kept.
  uint64_t input_hash_ = 0;
  std::vector<int64_t> bad_lines_;
};

// The number of samples to keep queued so that an engine of this batch size never starves.
inline int64_t outstanding_for(int32_t max_batch) { return 4 * int64_t{max_batch}; }

}  // namespace otr::cli
