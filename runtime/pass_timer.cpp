#include "runtime/pass_timer.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <random>

#include "kernels/attention/attention.h"
#include "kernels/base/clock.h"

namespace otr {
namespace {

// A pass's shape in whole numbers.
struct Counts {
  int32_t batch, rows, context;
  explicit Counts(const PassShape& pass)
      : batch(static_cast<int32_t>(pass.batch)),
        rows(static_cast<int32_t>(pass.rows)),
        context(static_cast<int32_t>(pass.context)) {}
  int32_t rows_of(int32_t sample) const { return rows / batch + (sample < rows % batch ? 1 : 0); }
};

// Pages that a sample writes with so many rows: those of a chain from position `context` on, or one a row of a level.
int32_t written_pages(CostRole role, const Counts& c, int32_t num_rows) {
  return role == CostRole::kDraft ? num_rows : (c.context + num_rows - 1) / kPageTokens - c.context / kPageTokens + 1;
}

int32_t written_pages(CostRole role, const Counts& c) {
  int32_t pages = 0;
  for (int32_t i = 0; i < c.batch; ++i) pages += written_pages(role, c, c.rows_of(i));
  return pages;
}

// Pages that are only read: all before the sample's first row, if each sample had its own, and the bytes there are for them.
int32_t read_pages(const Counts& c, int64_t page_bytes) {
  const int64_t most = std::max<int64_t>(2, PassTimer::kReadBytes / page_bytes);
  return static_cast<int32_t>(std::min<int64_t>(most, int64_t{c.batch} * (c.context / kPageTokens)));
}

std::vector<int32_t> random_tokens(size_t count, int32_t vocab_size) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size));
  return tokens;
}

}  // namespace

struct PassTimer::Model {
  explicit Model(const TimedProgram& timed)
      : runner(*timed.model),
        rows({.max_rows = timed.program->bucket().max_rows,
              .max_segments = timed.program->bucket().max_rows,
              .max_logit_rows = timed.program->bucket().max_logit_rows,
              .max_pages_per_sequence = 1},
             timed.model->tile_rows()) {}
  ~Model() {
    for (const PageId page : read) runner.page_pool().release(page);
    for (const PageId page : written) runner.page_pool().release(page);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Fills the first page by running it; the others become its copies.
  void start(const TimedProgram& timed) {
    const PageId first = runner.page_pool().take_free();
    assert(first != kNoPage);
    read.push_back(first);
    work.clear();
    work.zero.push_back(first);
    runner.prepare(work);
    const std::vector<int32_t> tokens = random_tokens(kPageTokens, runner.config().vocab_size);
    const int32_t chunk = std::min<int32_t>(kPageTokens, timed.program->bucket().max_rows);
    for (int32_t begin = 0; begin < kPageTokens; begin += chunk) {
      const size_t size = static_cast<size_t>(std::min(chunk, kPageTokens - begin));
      rows.clear();
      rows.add(std::span(tokens).subspan(static_cast<size_t>(begin), size), begin, read, std::numeric_limits<int32_t>::max());
      timed.program->run(rows.batch());
    }
  }

  // At least so many written pages, and up to so many that are read, but at least one. REQUIRES: the pool has the former.
  void grow(size_t num_written, size_t num_read) {
    work.clear();
    const auto take = [this](std::vector<PageId>* pages) {
      const PageId page = runner.page_pool().take_free();
      if (page == kNoPage) return false;
      work.copy_from.push_back(read.front());
      work.copy_to.push_back(page);
      pages->push_back(page);
      return true;
    };
    while (written.size() < num_written) {
      if (take(&written)) continue;
      assert(read.size() > 1);
      written.push_back(read.back());
      read.pop_back();
    }
    while (read.size() < num_read && take(&read)) {
    }
    runner.prepare(work);
  }

  ModelRunner& runner;
  RowBatchBuilder rows;
  std::vector<PageId> read, written;
  PageWork work;
};

PassTimer::PassTimer() = default;
PassTimer::~PassTimer() = default;

PassTimer::Model& PassTimer::model_of(const TimedProgram& timed) {
  for (const auto& m : models_) {
    if (&m->runner == timed.model) return *m;
  }
  models_.push_back(std::make_unique<Model>(timed));
  models_.back()->start(timed);
  return *models_.back();
}

bool PassTimer::fits(const TimedProgram& timed, CostRole role, const PassShape& pass) const {
  const Counts c(pass);
  if (c.batch < 1 || c.context < 0 || c.rows < c.batch || c.rows > timed.program->bucket().max_rows ||
      c.rows > timed.program->bucket().max_logit_rows)
    return false;
  const int32_t deepest = role == CostRole::kDraft ? 1 : c.rows_of(0);
  if (c.context + deepest > context_limit(timed.model->config())) return false;
  int64_t pages = timed.model->page_pool().num_free();
  for (const auto& m : models_) {
    if (&m->runner == timed.model) pages += static_cast<int64_t>(m->read.size() + m->written.size());
  }
  return written_pages(role, c) + 1 <= pages;
}

double PassTimer::time_ms(const TimedProgram& timed, CostRole role, const PassShape& pass, int32_t runs) {
  assert(fits(timed, role, pass) && runs >= 1);
  Model& m = model_of(timed);
  assemble(timed, role, pass, &m);
  list_draws(role, pass);
  const int32_t num_draws = static_cast<int32_t>(draws_.size());
  const int32_t per_place = std::min<int32_t>(kMaxCandidates, Counts(pass).rows_of(0));  // wider levels come of wider trees
  std::vector<double> times;
  for (int32_t run = 0; run < runs; ++run) {
    const Stopwatch time;
    timed.program->run(m.rows.batch());
    if (role == CostRole::kDraft) {
      timed.model->candidates(*timed.program, candidate_draws_.data(), num_draws, per_place, candidates_.data());
    } else {
      timed.model->draw(draws_.data(), num_draws, results_.data());
    }
    times.push_back(std::max(1e3 * time.seconds(), 1e-6));
    ++num_passes_;
  }
  if (runs > 1) times.erase(times.begin());
  std::sort(times.begin(), times.end());
  return times[(times.size() - 1) / 2];
}

void PassTimer::assemble(const TimedProgram& timed, CostRole role, const PassShape& pass, Model* m) {
  const Counts c(pass);
  const int32_t num_before = c.context / kPageTokens;  // pages before a sample's first row
  m->grow(static_cast<size_t>(written_pages(role, c)), static_cast<size_t>(read_pages(c, timed.model->page_bytes())));
  m->rows.clear();
  const std::vector<int32_t> tokens = random_tokens(static_cast<size_t>(c.rows), timed.model->config().vocab_size);
  const std::span<const int32_t> all(tokens);
  size_t row = 0, written = 0;
  std::vector<PageId> pages;
  for (int32_t i = 0; i < c.batch; ++i) {
    const size_t num_rows = static_cast<size_t>(c.rows_of(i));
    const size_t first = static_cast<size_t>(i) * m->read.size() / static_cast<size_t>(c.batch);
    pages.clear();
    for (int32_t p = 0; p < num_before; ++p) pages.push_back(m->read[(first + static_cast<size_t>(p)) % m->read.size()]);
    const std::span<const PageId> own(m->written.data() + written, static_cast<size_t>(written_pages(role, c, c.rows_of(i))));
    written += own.size();
    const size_t chain = role == CostRole::kDraft ? 1 : num_rows;
    pages.insert(pages.end(), own.begin(), own.end());
    m->rows.add(all.subspan(row, 1), c.context, pages, c.context, all.subspan(row + 1, chain - 1));
    for (size_t sibling = chain; sibling < num_rows; ++sibling) {
      m->rows.add_path(all.subspan(row + sibling, 1), c.context, std::span(pages).first(static_cast<size_t>(num_before)),
                       own.subspan(sibling, 1));
    }
    row += num_rows;
  }
}

// Temperature 1 without filters, as a rollout draws.
void PassTimer::list_draws(CostRole role, const PassShape& pass) {
  const Counts c(pass);
  draws_.clear();
  candidate_draws_.clear();
  for (int32_t i = 0; i < c.batch; ++i) {
    const NoiseStream noise = noise_stream({.seed = 1, .stream = 1, .sample = static_cast<uint32_t>(i)});
    for (int32_t row = 0; row < c.rows_of(i); ++row) {
      const int32_t depth = role == CostRole::kDraft ? 0 : row;
      draws_.push_back({.logits_row = static_cast<int32_t>(draws_.size()),
                        .position = c.context + depth + 1,
                        .noise = noise,
                        .forced_token = -1,
                        .temperature = 1.0f,
                        .top_k = 0,
                        .top_p = 1.0f,
                        .min_p = 0.0f,
                        .repetition_penalty = 1.0f,
                        .presence_penalty = 0.0f,
                        .frequency_penalty = 0.0f,
                        .num_penalties = 0,
                        .penalties = nullptr});
      candidate_draws_.push_back({draws_.back(), 1.0f, false});
    }
  }
  results_.resize(draws_.size());
  candidates_.resize(draws_.size());
}

}  // namespace otr
