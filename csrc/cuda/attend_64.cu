#include "cuda/attend_shapes.cuh"

namespace refusion::cuda {

template int attend_dim<64>(const Attend& op, const Launch& where, int splits);

}  // namespace refusion::cuda
