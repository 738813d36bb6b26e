// The two CUDA types that the TensorRT headers name. They are opaque handles, so a build needs no CUDA toolkit.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
