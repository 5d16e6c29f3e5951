// What moves whole pages: page_copy and page_zero inside the pool, page_gather and page_scatter out of it and into it.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/suite.h"
#include "loader/xxh64.h"

namespace otr::bench {
namespace {

// `count` pages at a time: from the lower half of the pool to the upper one, or zero.
Work make_page(Suite& suite, const ModelShape& m, int count, bool copy) {
  const KvLayout layout = {m.num_layers, m.num_kv_heads, m.head_dim};
  const size_t bytes = static_cast<size_t>(count * layout.page_bytes());
  const int64_t copies = copies_in_rotation(count * layout.page_bytes() * (copy ? 2 : 1));
  const int64_t half = copy ? copies * count : 0, half_elements = half * layout.page_elements();
  Element* pages = static_cast<Element*>(suite.arena().scratch((half + copies * count) * layout.page_bytes()));
  std::memcpy(static_cast<void*>(pages), suite.arena().elements(half_elements), static_cast<size_t>(half_elements) * 2);
  auto ids = std::make_shared<std::vector<PageId>>();
  for (int64_t i = 0; i < half + copies * count; ++i) ids->push_back(static_cast<PageId>(i));

  Work work;
  work.memory = copy ? Bound::kCopy : Bound::kWrite;
  work.bytes = static_cast<double>(bytes) * (copy ? 2 : 1);
  work.run = [=, &suite](int64_t call) {
    const PageId *from = ids->data() + call % copies * count, *to = from + half;
    if (copy) {
      suite.kernels().page_copy({layout, pages, from, to, count}, suite.pool());
    } else {
      suite.kernels().page_zero({layout, pages, to, count}, suite.pool());
    }
  };
  work.verify = [=] {
    Comparison comparison;
    for (int64_t i = 0; i < count * layout.page_elements(); ++i) {
      comparison.expect_equal(i, pages[half_elements + i].bits, copy ? pages[i].bits : 0);
    }
    return comparison.verdict();
  };
  work.spoil = [=] { std::memset(static_cast<void*>(pages + half_elements), 0xff, bytes); };
  work.hash = [=] { return xxh64(pages + half_elements, bytes); };
  return work;
}

// `count` pages at a time, in the path's packing: out of the pool, row-major, or into it.
Work make_transfer(Suite& suite, const ModelShape& m, int count, bool gather) {
  const KvLayout layout = {m.num_layers, m.num_kv_heads, m.head_dim, suite.kernels().kv_packing};
  const int64_t elements = count * layout.page_elements(), copies = copies_in_rotation(2 * count * layout.page_bytes());
  const size_t bytes = static_cast<size_t>(count * layout.page_bytes());
  const Element* from = suite.arena().elements(copies * elements);
  Element* to = static_cast<Element*>(suite.arena().scratch(copies * elements * 2));
  auto ids = std::make_shared<std::vector<PageId>>();
  for (int64_t i = 0; i < copies * count; ++i) ids->push_back(static_cast<PageId>(i));

  Work work;
  work.memory = Bound::kCopy;
  work.bytes = 2.0 * static_cast<double>(bytes);
  work.run = [=, &suite](int64_t call) {
    const int64_t i = call % copies;
    const PageId* page = ids->data() + i * count;
    if (gather) {
      suite.kernels().page_gather({layout, from, page, count, to + i * elements}, suite.pool());
    } else {
      suite.kernels().page_scatter({layout, to, page, count, from + i * elements}, suite.pool());
    }
  };
  work.verify = [=] {  // every key and value
    Comparison comparison;
    const Element *packed = gather ? from : to, *rows = gather ? to : from;
    for (int64_t head = 0; head < int64_t{count} * m.num_layers * m.num_kv_heads; ++head) {
      const Element *k = packed + head * 2 * layout.head_elements(), *v = k + layout.head_elements();
      const Element* row = rows + head * 2 * layout.head_elements();
      for (int64_t i = 0; i < layout.head_elements(); ++i) {
        const int64_t slot = i / m.head_dim, channel = i % m.head_dim;
        comparison.expect_equal(head * 2 * layout.head_elements() + i, k[layout.k_index(slot, channel)].bits, row[i].bits);
        comparison.expect_equal((head * 2 + 1) * layout.head_elements() + i, v[layout.v_index(slot, channel)].bits,
                                row[layout.head_elements() + i].bits);
      }
    }
    return comparison.verdict();
  };
  work.spoil = [=] { std::memset(static_cast<void*>(to), 0xff, bytes); };
  work.hash = [=] { return xxh64(to, bytes); };
  return work;
}

}  // namespace

void add_page_cases(Suite& suite) {
  for (const ModelShape& m : kModels) {
    for (const int count : {1, 16}) {
      const std::string name = std::string(m.name) + "/pages:" + std::to_string(count);
      suite.add("page_copy/" + name, [&suite, m, count] { return make_page(suite, m, count, true); });
      suite.add("page_zero/" + name, [&suite, m, count] { return make_page(suite, m, count, false); });
      suite.add("page_gather/" + name, [&suite, m, count] { return make_transfer(suite, m, count, true); });
      suite.add("page_scatter/" + name, [&suite, m, count] { return make_transfer(suite, m, count, false); });
    }
  }
}

}  // namespace otr::bench
