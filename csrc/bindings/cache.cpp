// The ops that touch the KV cache: rope_append, attend, compact_rows.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bindings/ops.h"

namespace refusion {
namespace {

CacheStrides strides_of(const Tensor& cache) { return {cache.strides[0], cache.strides[1], cache.strides[2]}; }

// Key and value cache of a layer: one shape, the dtype of the tokens.
void caches(Check& check, const Tensor& k_cache, const Tensor& v_cache, const Tensor& tokens, const char* tokens_name) {
  static constexpr const char* kAxes[] = {"sequences", "kv_heads", "capacity", "head_dim"};
  for (const auto& [cache, name] : {std::pair{&k_cache, "k_cache"}, {&v_cache, "v_cache"}}) {
    check.rank(*cache, name, {kAxes[0], kAxes[1], kAxes[2], kAxes[3]});
    check.same_dtype(*cache, name, tokens, tokens_name);
    check.last_axis_contiguous(*cache, name);
  }
  for (int i = 0; i < 4; ++i) check.axis(v_cache, "v_cache", i, kAxes[i], k_cache.shape[i], "k_cache");
}

void head_dim(const Check& check, int64_t value, const char* whose) {
  if (value < 8 || value > 256 || value % 8 != 0)
    bad_value(check.op, ": head_dim must be a multiple of 8 up to 256, ", whose, " has ", value);
}

const int32_t* token_offsets(Check& check, const Tensor& offsets, int64_t tokens, int64_t sequences) {
  const int32_t* const values = check.offsets(offsets, "sequence_offsets", tokens, "tokens");
  if (offsets.shape[0] - 1 != sequences)
    bad_value(check.op, ": sequence_offsets has ", offsets.shape[0] - 1, " sequences, the cache has ", sequences);
  return values;
}

// An array [tokens, q_heads, head_dim] for the result, on none of the other arrays.
void token_heads(Check& check, const Tensor& out, const Tensor& like, const char* like_name, int64_t tokens,
                 int64_t q_heads, int64_t head_dim,
                 std::initializer_list<std::pair<const Tensor*, const char*>> others) {
  check.rank(out, "out", {"tokens", "q_heads", "head_dim"});
  check.same_dtype(out, "out", like, like_name);
  check.axis(out, "out", 0, "tokens", tokens, like_name);
  check.axis(out, "out", 1, "q_heads", q_heads, like_name);
  check.axis(out, "out", 2, "head_dim", head_dim, like_name);
  check.contiguous(out, "out");
  check.written(out, "out");
  for (const auto& [other, name] : others) check.apart(out, "out", *other, name);
}

const void* norm_of(Check& check, const Maybe& norm, const char* name, const Tensor& qkv, int64_t head_dim) {
  if (!norm) return nullptr;
  check.rank(*norm, name, {"head_dim"});
  check.same_dtype(*norm, name, qkv, "qkv");
  check.axis(*norm, name, 0, "head_dim", head_dim, "k_cache");
  check.contiguous(*norm, name);
  return norm->data;
}

const float* table_of(Check& check, const Tensor& table, const char* name, int64_t head_dim) {
  check.rank(table, name, {"positions", "head_dim / 2"});
  check.dtype<float>(table, name);
  check.axis(table, name, 1, "width", head_dim / 2, "half a head of k_cache");
  check.contiguous(table, name);
  return table.as<const float>();
}

void in_range(const Check& check, const char* name, const int32_t* values, int64_t count, int64_t limit,
              const char* whose) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= limit)
      bad_value(check.op, ": ", name, "[", i, "] is ", values[i], ", ", whose, " has ", limit, " rows");
}

// Tokens are written in parallel, so two of a sequence must not have one row. Rows usually ascend, which settles it.
void rows_are_distinct(const RopeAppend& op) {
  for (int64_t n = 0; n < op.sequences; ++n) {
    const int32_t *begin = op.rows + op.sequence_offsets[n], *end = op.rows + op.sequence_offsets[n + 1];
    if (std::adjacent_find(begin, end, std::greater_equal<>()) == end) continue;
    std::vector<int32_t> sorted(begin, end);
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
      bad_value("rope_append: rows must be distinct within a sequence, got ", *twice, " twice in sequence ", n);
  }
}

void windows_in_cache(const Attend& op) {
  for (int64_t n = 0; n < op.sequences; ++n) {
    const int64_t committed = op.committed[n];
    if (committed < 0 || committed > op.capacity)
      bad_value("attend: committed[", n, "] is ", committed, ", k_cache has capacity ", op.capacity);
    for (int64_t i = op.sequence_offsets[n]; i < op.sequence_offsets[n + 1]; ++i) {
      const int64_t begin = op.window_begin[i], end = op.window_end[i];
      if (begin < end && begin < 0) bad_value("attend: window_begin[", i, "] is ", begin, ", expected at least 0");
      if (begin < end && committed + end > op.capacity)
        bad_value("attend: window_end[", i, "] is ", end, " after ", committed, " committed rows,",
                  " k_cache has capacity ", op.capacity);
    }
  }
}

void sources_can_move(const CompactRows& op) {
  for (int64_t n = 0; n < op.sequences; ++n) {
    const int64_t begin = op.source_offsets[n], end = op.source_offsets[n + 1], first = op.destination[n];
    if (begin < end && first < 0) bad_value("compact_rows: destination[", n, "] is ", first, ", expected at least 0");
    for (int64_t i = begin; i < end; ++i) {
      const int64_t source = op.sources[i], target = first + i - begin;
      if (source >= op.capacity)
        bad_value("compact_rows: sources[", i, "] is ", source, ", cache has capacity ", op.capacity);
      if (i > begin && source <= op.sources[i - 1])
        bad_value("compact_rows: sources must increase within a sequence, got ", op.sources[i - 1], " then ", source,
                  " at entry ", i);
      if (source < target)
        bad_value("compact_rows: sources[", i, "] is ", source, ", which lies below its destination ", target);
    }
  }
}

}  // namespace

void rope_append(const Tensor& qkv, const Maybe& q_norm, const Maybe& k_norm, const Tensor& cosine, const Tensor& sine,
                 const Tensor& position_ids, const Tensor& rows, const Tensor& sequence_offsets, const Tensor& k_cache,
                 const Tensor& v_cache, float norm_epsilon, const Tensor& out) {
  Check check("rope_append");
  RopeAppend op{};
  check.rank(qkv, "qkv", {"tokens", "(q_heads + 2 * kv_heads) * head_dim"});
  op.dtype = check.floating(qkv, "qkv");
  check.last_axis_contiguous(qkv, "qkv");
  caches(check, k_cache, v_cache, qkv, "qkv");
  op.tokens = qkv.shape[0];
  op.sequences = k_cache.shape[0];
  op.kv_heads = k_cache.shape[1];
  op.capacity = k_cache.shape[2];
  op.head_dim = k_cache.shape[3];
  head_dim(check, op.head_dim, "k_cache");
  op.q_heads = qkv.shape[1] / op.head_dim - 2 * op.kv_heads;
  if (op.kv_heads < 1 || op.q_heads < 1 || qkv.shape[1] % op.head_dim != 0 || op.q_heads % op.kv_heads != 0)
    bad_value("rope_append: qkv has width ", qkv.shape[1], ", expected (q_heads + 2 * ", op.kv_heads, ") * ",
              op.head_dim, " with q_heads a multiple of the kv_heads of k_cache");
  op.qkv = qkv.data;
  op.qkv_stride = qkv.strides[0];
  if (q_norm.has_value() != k_norm.has_value())
    bad_value("rope_append: q_norm and k_norm must both be given or both be None, got ", q_norm ? "q_norm" : "k_norm");
  op.q_norm = norm_of(check, q_norm, "q_norm", qkv, op.head_dim);
  op.k_norm = norm_of(check, k_norm, "k_norm", qkv, op.head_dim);
  if (!(norm_epsilon >= 0) || std::isinf(norm_epsilon))
    bad_value("rope_append: norm_epsilon must be finite and not negative, got ", norm_epsilon);
  op.norm_epsilon = norm_epsilon;
  op.cosine = table_of(check, cosine, "cosine", op.head_dim);
  op.sine = table_of(check, sine, "sine", op.head_dim);
  op.positions = cosine.shape[0];
  check.axis(sine, "sine", 0, "positions", op.positions, "cosine");
  op.position_ids = check.vector<int32_t>(position_ids, "position_ids", op.tokens, "tokens");
  op.rows = check.vector<int32_t>(rows, "rows", op.tokens, "tokens");
  op.sequence_offsets = token_offsets(check, sequence_offsets, op.tokens, op.sequences);
  if (check.on_cpu()) {
    in_range(check, "position_ids", op.position_ids, op.tokens, op.positions, "cosine");
    in_range(check, "rows", op.rows, op.tokens, op.capacity, "a sequence of k_cache");
    rows_are_distinct(op);
  }
  op.k_cache = k_cache.data;
  op.v_cache = v_cache.data;
  op.k_strides = strides_of(k_cache);
  op.v_strides = strides_of(v_cache);
  check.written(k_cache, "k_cache");
  check.written(v_cache, "v_cache");
  // Caches may interleave, as views of one allocation do; only the very same memory is certainly wrong.
  if (k_cache.data == v_cache.data && !k_cache.empty())
    bad_value("rope_append: k_cache and v_cache are the same memory");
  check.apart(k_cache, "k_cache", qkv, "qkv");
  check.apart(v_cache, "v_cache", qkv, "qkv");
  token_heads(check, out, qkv, "qkv", op.tokens, op.q_heads, op.head_dim,
              {{&qkv, "qkv"}, {&k_cache, "k_cache"}, {&v_cache, "v_cache"}});
  op.q = out.data;
  run(check, op);
}

void attend(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& sequence_offsets,
            const Tensor& committed, const Tensor& window_begin, const Tensor& window_end, std::optional<float> scale,
            const Tensor& out) {
  Check check("attend");
  Attend op{};
  check.rank(q, "q", {"tokens", "q_heads", "head_dim"});
  op.dtype = check.floating(q, "q");
  check.last_axis_contiguous(q, "q");
  caches(check, k_cache, v_cache, q, "q");
  op.tokens = q.shape[0];
  op.q_heads = q.shape[1];
  op.head_dim = q.shape[2];
  op.sequences = k_cache.shape[0];
  op.kv_heads = k_cache.shape[1];
  op.capacity = k_cache.shape[2];
  check.axis(k_cache, "k_cache", 3, "head_dim", op.head_dim, "q");
  head_dim(check, op.head_dim, "q");
  if (op.kv_heads < 1 || op.q_heads < 1 || op.q_heads % op.kv_heads != 0)
    bad_value("attend: q has q_heads ", op.q_heads, ", expected a multiple of kv_heads, k_cache has ", op.kv_heads);
  op.q = q.data;
  op.q_token_stride = q.strides[0];
  op.q_head_stride = q.strides[1];
  op.k_cache = k_cache.data;
  op.v_cache = v_cache.data;
  op.k_strides = strides_of(k_cache);
  op.v_strides = strides_of(v_cache);
  op.sequence_offsets = token_offsets(check, sequence_offsets, op.tokens, op.sequences);
  op.committed = check.vector<int32_t>(committed, "committed", op.sequences, "sequences of k_cache");
  op.window_begin = check.vector<int32_t>(window_begin, "window_begin", op.tokens, "tokens of q");
  op.window_end = check.vector<int32_t>(window_end, "window_end", op.tokens, "tokens of q");
  if (check.on_cpu()) windows_in_cache(op);
  op.scale = scale ? *scale : 1.f / std::sqrt(float(op.head_dim));
  if (!std::isfinite(op.scale)) bad_value("attend: scale must be finite, got ", op.scale);
  token_heads(check, out, q, "q", op.tokens, op.q_heads, op.head_dim,
              {{&q, "q"}, {&k_cache, "k_cache"}, {&v_cache, "v_cache"}});
  op.out = out.data;
  run(check, op);
}

void compact_rows(const Tensor& cache, const Tensor& sources, const Tensor& source_offsets, const Tensor& destination) {
  Check check("compact_rows");
  const int leading = cache.rank == 4 ? 0 : 2;  // axes before the sequences
  if (leading) check.rank(cache, "cache", {"layers", "2", "sequences", "kv_heads", "capacity", "head_dim"});
  else check.rank(cache, "cache", {"sequences", "kv_heads", "capacity", "head_dim"});
  check.floating(cache, "cache");
  check.last_axis_contiguous(cache, "cache");
  if (leading) check.axis(cache, "cache", 1, "planes", 2, "a layer (key and value)");
  check.written(cache, "cache");
  CompactRows op{};
  op.cache = cache.data;
  op.element_size = cache.element_size();
  op.layers = leading ? cache.shape[0] : 1;
  op.planes = leading ? cache.shape[1] : 1;
  op.layer_stride = leading ? cache.strides[0] : 0;
  op.plane_stride = leading ? cache.strides[1] : 0;
  op.sequences = cache.shape[leading];
  op.kv_heads = cache.shape[leading + 1];
  op.capacity = cache.shape[leading + 2];
  op.head_dim = cache.shape[leading + 3];
  op.sequence_stride = cache.strides[leading];
  op.head_stride = cache.strides[leading + 1];
  op.row_stride = cache.strides[leading + 2];
  op.sources = check.vector<int32_t>(sources, "sources");
  op.kept = sources.shape[0];
  op.source_offsets = check.offsets(source_offsets, "source_offsets", op.kept, "sources");
  if (source_offsets.shape[0] - 1 != op.sequences)
    bad_value("compact_rows: source_offsets has ", source_offsets.shape[0] - 1, " sequences, cache has ", op.sequences);
  op.destination = check.vector<int32_t>(destination, "destination", op.sequences, "sequences of cache");
  if (check.on_cpu()) sources_can_move(op);
  run(check, op);
}

}  // namespace refusion
