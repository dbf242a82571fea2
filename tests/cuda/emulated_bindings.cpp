// The real bindings in one translation unit, which compiles in the time of one of them.
#include "bindings/cache.cpp"
#include "bindings/check.cpp"
#include "bindings/cuda_device.cpp"
#include "bindings/module.cpp"
#include "bindings/score.cpp"
#include "bindings/slots.cpp"
#include "bindings/tensor.cpp"
#include "emulated_backend.cpp"
