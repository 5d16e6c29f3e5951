#include "kernels/cuda/cuda_kernels.h"

#include "kernels/attention/attention_sm90.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/embed/embed_sm90.h"
#include "kernels/layouts/w4_fragments.h"
#include "kernels/linear/linear_rows_sm90.h"
#include "kernels/linear/linear_sm90.h"
#include "kernels/linear_w4/linear_w4_sm90.h"
#include "kernels/page/page_sm90.h"
#include "kernels/quantize_w4/quantize_w4_sm90.h"
#include "kernels/rmsnorm/rmsnorm_sm90.h"
#include "kernels/rope_append/rope_append_sm90.h"
#include "kernels/route/route_sm90.h"
#include "kernels/sample/sample_sm90.h"

namespace otr {
namespace {

CudaDevice& device_of(const LaunchContext& on) { return static_cast<CudaDevice&>(*on.accelerator); }

// An op whose launch takes its params and a stream.
template <auto kLaunch>
struct InStream;
template <typename Params, Status (*kLaunch)(const Params&, cudaStream_t)>
struct InStream<kLaunch> {
  static void launch(const Params& params, const LaunchContext& on) {
    CudaDevice& device = device_of(on);
    device.keep(kLaunch(params, device.stream()));
  }
};

Status linear(const LinearParams& p, cudaStream_t stream) {
  if (p.gated == nullptr) return linear_sm90(p, stream);
  return linear_silu_mul_sm90({p.num_rows, p.weight, p.x, p.x_stride, p.gated, p.gated_stride}, stream);
}

Status quantize_w4(const QuantizeW4Params& p, cudaStream_t stream) { return quantize_w4_sm90(p, p.gated, stream); }

Status attention(const AttentionParams& p, cudaStream_t stream) {
  return attention_sm90(p, {p.workspace, p.workspace_size, p.max_keys}, stream);
}

// ---- Draws ------------------------------------------------------------------------------------------------------------------

struct Scratch {
  int32_t* spare;
  SampleChunk* chunks;
  CandidateList* lists;
  int64_t bytes;
};

Scratch scratch_at(void* data, int32_t vocab_size, int32_t num_draws) {
  const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t chunks = int64_t{num_draws} * sample_num_chunks(vocab_size);
  const int64_t spare_bytes = aligned(num_draws * sample_workspace_stride(vocab_size) * static_cast<int64_t>(sizeof(int32_t)));
  const int64_t chunk_bytes = aligned(chunks * static_cast<int64_t>(sizeof(SampleChunk)));
  const int64_t list_bytes = aligned(chunks * static_cast<int64_t>(sizeof(CandidateList)));
  uint8_t* begin = static_cast<uint8_t*>(data);
  return {reinterpret_cast<int32_t*>(begin), reinterpret_cast<SampleChunk*>(begin + spare_bytes),
          reinterpret_cast<CandidateList*>(begin + spare_bytes + chunk_bytes), spare_bytes + chunk_bytes + list_bytes};
}

int64_t sample_scratch_bytes(int32_t vocab_size, int32_t num_draws) { return scratch_at(nullptr, vocab_size, num_draws).bytes; }

Status sample(const SampleParams& p, cudaStream_t stream) {
  const Scratch s = scratch_at(p.scratch, p.vocab_size, p.num_draws);
  return sample_sm90(p, {s.chunks, s.spare}, stream);
}

Status candidates(const CandidateParams& p, cudaStream_t stream) {
  const Scratch s = scratch_at(p.scratch, p.vocab_size, p.num_draws);
  return candidates_sm90(p, {s.chunks, s.lists, s.spare}, stream);
}

// ---- What the path wants of its operands ------------------------------------------------------------------------------

void clear(void* data, size_t bytes, const LaunchContext& on) { on.accelerator->clear(data, bytes); }

int attention_tile_rows(int num_heads, int num_kv_heads) { return attention_sm90_tile_rows(num_heads, num_kv_heads); }

void rows_from_tiles(const LinearWeight& weight, bool in_turns, Element* rows, const LaunchContext& on) {
  CudaDevice& device = device_of(on);
  device.keep(linear_rows_sm90(weight, in_turns, rows, device.stream()));
}

int64_t attention_workspace(const KvLayout& layout, int num_heads, int max_rows, int max_keys) {
  const Result<DeviceLimits> limits = device_limits_sm90();
  const int num_sms = limits.ok() ? limits.value().num_sms : DeviceLimits{}.num_sms;
  const int rows = attention_sm90_split_rows(num_heads, layout, max_keys, max_rows, num_sms);
  return attention_sm90_workspace(rows, num_heads, layout.head_dim, max_keys);
}

constexpr DeviceLayouts kLayouts = {
    .rows_from_tiles = rows_from_tiles,
    .max_pages = attention_sm90_max_pages,
    .attention_workspace = attention_workspace,
    .sample_scratch_bytes = sample_scratch_bytes,
    .take_tokens = InStream<take_tokens_sm90>::launch,
    .route = InStream<route_sm90>::launch,
    .gather_experts = InStream<gather_experts_sm90>::launch,
    .linear_experts = InStream<linear_experts_sm90>::launch,
    .linear_w4_experts = InStream<linear_w4_experts_sm90>::launch,
    .combine_experts = InStream<combine_experts_sm90>::launch,
    .linear_tile_rows = kLinearExpertsRows,
    .linear_w4_tile_rows = kW4NarrowRows,
};

constexpr KernelTable kTable = {
    .path = kCudaPath,
    .embed = InStream<embed_sm90>::launch,
    .rmsnorm = InStream<rmsnorm_sm90>::launch,
    .linear = InStream<linear>::launch,
    .linear_w4 = InStream<linear_w4_sm90>::launch,
    .quantize_w4 = InStream<quantize_w4>::launch,
    .rope_table = InStream<rope_table_sm90>::launch,
    .rope_append = InStream<rope_append_sm90>::launch,
    .attention = InStream<attention>::launch,
    .sample = InStream<sample>::launch,
    .candidates = InStream<candidates>::launch,
    .page_copy = InStream<page_copy_sm90>::launch,
    .page_zero = InStream<page_zero_sm90>::launch,
    .page_gather = InStream<page_gather_sm90>::launch,
    .page_scatter = InStream<page_scatter_sm90>::launch,
    .clear = clear,
    .attention_tile_rows = attention_tile_rows,
    .w4_packed_bytes = w4_sm90_packed_bytes,
    .device = &kLayouts,
};

}  // namespace

const KernelTable& cuda_kernels() { return kTable; }

Status load_cuda_kernels(CudaDevice* device) {
  (void)device->stream();  // makes it current
  for (Status (*const load)() :
       {load_embed_sm90, load_rmsnorm_sm90, load_linear_sm90, load_linear_rows_sm90, load_linear_w4_sm90, load_quantize_w4_sm90,
        load_rope_append_sm90, load_attention_sm90, load_route_sm90, load_sample_sm90, load_candidates_sm90,
        load_take_tokens_sm90, load_page_sm90})
    OTR_RETURN_IF_ERROR(load());
  return {};
}

}  // namespace otr
