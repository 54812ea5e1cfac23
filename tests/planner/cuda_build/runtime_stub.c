/* A stub of the CUDA runtime and driver: one GPU of a chosen architecture, without memory and kernels.
 *
 * A CUDA build of PyTorch in front of it dispatches operators on tensors without memory as on that GPU. The library is
 * loaded before torch with RTLD_GLOBAL, so that its functions precede those of libcudart; its soname is the driver's.
 * Queries of the device have answers. Memory, copies and launches return an error, so nothing can run by mistake.
 * REMATE_STUB_CAPABILITY="9.0" selects the architecture.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

static int major = 9, minor = 0;
static const int processors = 132;
static const size_t megabytes = 81920;
static const char name[] = "stub of a GPU";
static __thread int current = 0;
static __thread cudaError_t last = cudaSuccess;
static const char *const refused = "this stub of a GPU has no memory and runs no kernels";

__attribute__((constructor)) static void read_capability(void) {
    const char *capability = getenv("REMATE_STUB_CAPABILITY");
    if (capability) sscanf(capability, "%d.%d", &major, &minor);
}

static int refuse(const char *what) {
    (void)what;
    last = cudaErrorNotSupported;
    return cudaErrorNotSupported;
}

/* Devices */
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { current = device; return device ? cudaErrorInvalidDevice : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) { snprintf(text, length, "0000:00:00.0"); return 0; }
cudaError_t cudaMemGetInfo(size_t *available, size_t *all) { *available = *all = megabytes << 20; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    int shared = major == 8 && minor == 0 ? 163 : major == 8 || major == 12 ? 99 : 227; /* KiB of shared memory per block */
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->major = major, p->minor = minor, p->multiProcessorCount = processors;
    p->totalGlobalMem = megabytes << 20, p->l2CacheSize = 50 << 20, p->totalConstMem = 65536;
    p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = major == 8 && minor ? 1536 : 2048;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->maxBlocksPerMultiProcessor = 32;
    p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = shared << 10, p->reservedSharedMemPerBlock = 1024;
    p->sharedMemPerMultiprocessor = (shared + 1) << 10, p->textureAlignment = 512, p->memPitch = 2147483647;
    p->unifiedAddressing = p->managedMemory = p->concurrentKernels = p->canMapHostMemory = p->memoryPoolsSupported = 1;
    p->memoryBusWidth = 5120, p->asyncEngineCount = 3, p->cooperativeLaunch = p->ECCEnabled = 1;
    return cudaSuccess;
}

static int attribute(int which) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    switch (which) {
    case cudaDevAttrComputeCapabilityMajor: return p.major;
    case cudaDevAttrComputeCapabilityMinor: return p.minor;
    case cudaDevAttrMultiProcessorCount: return p.multiProcessorCount;
    case cudaDevAttrWarpSize: return p.warpSize;
    case cudaDevAttrMaxThreadsPerBlock: return p.maxThreadsPerBlock;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrMaxSharedMemoryPerBlock: return p.sharedMemPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return p.sharedMemPerBlockOptin;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return p.sharedMemPerMultiprocessor;
    case cudaDevAttrL2CacheSize: return p.l2CacheSize;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory: return 1;
    }
    return 0;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) { *value = attribute(which); return 0; }

/* Streams and events are always complete. */
cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = (cudaStream_t)malloc(8); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { return cudaStreamCreate(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { return cudaStreamCreate(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) { *c = 0; return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *c, unsigned long long *id, cudaGraph_t *g,
                                     const cudaGraphNode_t **d, const cudaGraphEdgeData **e, size_t *n) {
    *c = 0;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { *e = (cudaEvent_t)malloc(8); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { *ms = 0; return cudaSuccess; }

/* Errors, memory, kernels */
cudaError_t cudaGetLastError(void) { cudaError_t was = last; last = cudaSuccess; return was; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t e) { return e == cudaErrorNotSupported ? refused : "no error"; }
const char *cudaGetErrorName(cudaError_t e) { return e ? "cudaErrorNotSupported" : "cudaSuccess"; }
cudaError_t cudaMalloc(void **p, size_t n) { *p = NULL; return refuse("cudaMalloc"); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return refuse("cudaMallocAsync"); }
cudaError_t cudaMemcpy(void *to, const void *of, size_t n, enum cudaMemcpyKind k) { return refuse("cudaMemcpy"); }
cudaError_t cudaMemcpyAsync(void *to, const void *of, size_t n, enum cudaMemcpyKind k, cudaStream_t s) {
    return refuse("cudaMemcpyAsync");
}
cudaError_t cudaMemset(void *p, int v, size_t n) { return refuse("cudaMemset"); }
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) { return refuse("cudaMemsetAsync"); }
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) { return refuse("a kernel"); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { return refuse("a kernel"); }

/* The driver */
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int at) { *device = at; return at ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice d) { *value = attribute(which); return 0; }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
CUresult cuGetErrorString(CUresult e, const char **text) { *text = refused; return CUDA_SUCCESS; }
