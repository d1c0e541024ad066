// MIOpen, rocBLAS and hipBLASLt without their kernels, for compiling alone: every call succeeds, and nothing is chosen.
//
// A convolution that is compiled with this MIOpen holds a solution that says so, and that no MIOpen loads. A matrix
// product holds nothing of these libraries: rocBLAS's solution 0 is chosen when the program runs. Calls that compute
// report failure, unless a function is named that carries them out (gpustub_set_product_hook, …).
// One source for the three: each is linked with the symbols of its own that MIGraphX needs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
#define OK(name) API int name() { return 0; }
#define MAKE(name) API int name(void** out) { return make(out); }
#define DROP(name) API int name(void* object) { return std::free(object), 0; }

namespace {
const int unsupported = 7;

// Descriptors of MIOpen; all objects are as large as the largest, and plain, so that they can be saved
struct tensor
{
    std::int64_t type, rank, lengths[8], strides[8];
};
struct convolution
{
    std::int64_t rank, pads[8], strides[8], dilations[8], groups, transposed;
};
struct pooling
{
    std::int64_t rank, mode, windows[8], pads[8], strides[8];
};
struct normalization
{
    std::int64_t mode, size;
    double alpha, beta, bias;
};
struct problem
{
    convolution how;
    tensor tensors[4]; // by their id: 1 is the input, 2 the weights, 3 the output
};
struct saved
{
    char no_miopen[32];
    problem what;
};
const saved unsaved = {NO_MIOPEN, {}};

int make(void** out) { return *out = std::calloc(1, sizeof(problem)), *out == nullptr; }
void copy(std::int64_t* to, const int* from, int count)
{
    for(int i = 0; i < count and i < 8; i++)
        to[i] = from[i];
}

struct convolved
{
    const problem* what;
    const void *input, *weights;
    void* output;
};
template <class How>
struct layer
{
    const How* how;
    const tensor* about_input;
    const void* input;
    const tensor* about_output;
    void* output;
};
using convolution_hook              = int (*)(const convolved*);
using pooling_hook                  = int (*)(const layer<pooling>*);
using normalization_hook            = int (*)(const layer<normalization>*);
convolution_hook on_convolution     = nullptr;
pooling_hook on_pooling             = nullptr;
normalization_hook on_normalization = nullptr;
} // namespace

API void gpustub_set_convolution_hook(convolution_hook hook) { on_convolution = hook; }
API void gpustub_set_pooling_hook(pooling_hook hook) { on_pooling = hook; }
API void gpustub_set_normalization_hook(normalization_hook hook) { on_normalization = hook; }

// ---- MIOpen -------------------------------------------------------------------------------------------------------

API int miopenCreate(void** out) { return make(out); }
API int miopenCreateWithStream(void** out, void*) { return make(out); }
API int miopenSetTensorDescriptor(tensor* t, int type, int rank, const int* lengths, const int* strides)
{
    t->type = type, t->rank = rank;
    copy(t->lengths, lengths, rank);
    std::int64_t dense = 1;
    for(int i = rank - 1; i >= 0; dense *= lengths[i--])
        t->strides[i] = strides == nullptr ? dense : strides[i];
    return rank > 8 ? unsupported : 0;
}
API int miopenInitConvolutionNdDescriptor(
    convolution* c, int rank, const int* pads, const int* strides, const int* dilations, int mode)
{
    c->rank = rank, c->groups = 1, c->transposed = mode == 1;
    copy(c->pads, pads, rank), copy(c->strides, strides, rank), copy(c->dilations, dilations, rank);
    return 0;
}
API int miopenSetConvolutionGroupCount(convolution* c, int groups) { return c->groups = groups, 0; }
API int miopenCreateConvProblem(problem** out, const convolution* how, int)
{
    if(make(reinterpret_cast<void**>(out)) != 0)
        return unsupported;
    return (*out)->how = *how, 0;
}
API int miopenSetProblemTensorDescriptor(problem* p, int id, const tensor* t) { return p->tensors[id & 3] = *t, 0; }
API int miopenFindSolutions(void*, const problem* p, void*, problem** solutions, std::size_t* n, std::size_t)
{
    if(make(reinterpret_cast<void**>(solutions)) != 0)
        return unsupported;
    return **solutions = *p, *n = 1, 0;
}
API int miopenGetSolutionSize(void*, std::size_t* n) { return *n = sizeof(saved), 0; }
API int miopenSaveSolution(const problem* solution, char* to)
{
    saved s = unsaved;
    s.what  = *solution;
    return std::memcpy(to, &s, sizeof s), 0;
}
API int miopenLoadSolution(problem** solution, const char* from, std::size_t size)
{
    if(size != sizeof(saved) or make(reinterpret_cast<void**>(solution)) != 0)
        return unsupported;
    return std::memcpy(*solution, from + offsetof(saved, what), sizeof(problem)), 0;
}
struct argument // miopenTensorArgument_t
{
    int id;
    void* descriptor;
    void* buffer;
};
API int miopenRunSolution(void*, const problem* solution, std::size_t n, const argument* arguments, void*, std::size_t)
{
    void* buffers[4] = {};
    for(std::size_t i = 0; i < n; i++)
        buffers[arguments[i].id & 3] = arguments[i].buffer;
    const convolved c{solution, buffers[1], buffers[2], buffers[3]};
    return on_convolution == nullptr ? unsupported : on_convolution(&c);
}
API int miopenSetNdPoolingDescriptor(
    pooling* p, int mode, int rank, const int* windows, const int* pads, const int* strides)
{
    p->rank = rank, p->mode = mode;
    copy(p->windows, windows, rank), copy(p->pads, pads, rank), copy(p->strides, strides, rank);
    return 0;
}
API int miopenPoolingForward(void*, const pooling* how, const void*, const tensor* about_input, const void* input,
                             const void*, const tensor* about_output, void* output, bool, void*, std::size_t)
{
    const layer<pooling> p{how, about_input, input, about_output, output};
    return on_pooling == nullptr ? unsupported : on_pooling(&p);
}
API int miopenSetLRNDescriptor(normalization* n, int mode, unsigned size, double alpha, double beta, double bias)
{
    return *n = {mode, size, alpha, beta, bias}, 0;
}
API int miopenLRNForward(void*, const normalization* how, const void*, const tensor* about_input, const void* input,
                         const void*, const tensor* about_output, void* output, bool, void*)
{
    const layer<normalization> l{how, about_input, input, about_output, output};
    return on_normalization == nullptr ? unsupported : on_normalization(&l);
}
API int miopenCreateOpConvForward(void*, void** out, void*, void*) { return make(out); }
API int miopenCreateOpBiasForward(void*, void** out, void*) { return make(out); }
API int miopenCreateOpActivationForward(void*, void** out, int) { return make(out); }
API int miopenCompileFusionPlan(void*, void*) { return unsupported; } // MIGraphX then keeps the parts apart
API int miopenConvolutionForwardGetWorkSpaceSize(void*, void*, void*, void*, void*, std::size_t* n)
{
    return *n = 0, 0;
}
API int miopenGetSolutionWorkspaceSize(void*, std::size_t* n) { return *n = 0, 0; }
MAKE(miopenCreateTensorDescriptor)
MAKE(miopenCreateConvolutionDescriptor)
MAKE(miopenCreatePoolingDescriptor)
MAKE(miopenCreateActivationDescriptor)
MAKE(miopenCreateLRNDescriptor)
MAKE(miopenCreateOperatorArgs)
MAKE(miopenCreateFusionPlan)
MAKE(miopenCreateFindOptions)
DROP(miopenDestroy)
DROP(miopenDestroyTensorDescriptor)
DROP(miopenDestroyConvolutionDescriptor)
DROP(miopenDestroyPoolingDescriptor)
DROP(miopenDestroyActivationDescriptor)
DROP(miopenDestroyLRNDescriptor)
DROP(miopenDestroyOperatorArgs)
DROP(miopenDestroyFusionPlan)
DROP(miopenDestroyFindOptions)
DROP(miopenDestroyProblem)
DROP(miopenDestroySolution)
OK(miopenHiddenSetConvolutionFindMode)
OK(miopenSetActivationDescriptor)
OK(miopenSetFindOptionPreallocatedTensor)
OK(miopenSetFindOptionPreallocatedWorkspace)
OK(miopenSetFindOptionTuning)
OK(miopenSetOpArgsActivForward)
OK(miopenSetOpArgsBiasForward)
OK(miopenSetOpArgsConvForward)

// ---- matrix products of both libraries ------------------------------------------------------------------------------

namespace {
// One matrix, or a batch of them, column by column; types as HIP numbers them (hipDataType)
struct matrix
{
    const void* data;
    std::int64_t type, leading, stride;
};
// d = alpha · op(a) · op(b) + beta · c, computed in a type, in which alpha and beta are as well unless another is named
struct product
{
    std::int64_t transpose_a, transpose_b, m, n, k, batch, compute_type, scale_type;
    const void *alpha, *beta;
    matrix a, b, c, d;
};
using product_hook      = int (*)(const product*);
product_hook on_product = nullptr;
int multiply(const product& p) { return on_product == nullptr ? unsupported : on_product(&p); }

enum hip_type : int
{
    hip_float  = 0,
    hip_double = 1,
    hip_half   = 2,
    hip_int    = 10,
};
const int transposed = 112; // of both libraries

int type_of_rocblas(int type)
{
    switch(type)
    {
    case 150: return hip_half;
    case 151: return hip_float;
    case 152: return hip_double;
    case 160: return 3;
    case 161: return 8;
    case 162: return hip_int;
    case 163: return 12;
    case 168: return 14;
    default: return -type;
    }
}
int type_of_computation(int type) // hipblasComputeType_t
{
    return type < 2 ? hip_half : type < 7 ? hip_float : type < 9 ? hip_double : hip_int;
}
} // namespace

API void gpustub_set_product_hook(product_hook hook) { on_product = hook; }

// ---- rocBLAS ------------------------------------------------------------------------------------------------------

API int rocblas_gemm_strided_batched_ex(void*, int oa, int ob, int m, int n, int k, const void* alpha, const void* a,
                                        int ta, int la, long sa, const void* b, int tb, int lb, long sb,
                                        const void* beta, const void* c, int tc, int lc, long sc, void* d, int td,
                                        int ld, long sd, int batch, int compute, int, int, unsigned)
{
    const int type = type_of_rocblas(compute);
    return multiply({oa == transposed, ob == transposed, m, n, k, batch, type, type, alpha, beta,
                     {a, type_of_rocblas(ta), la, sa}, {b, type_of_rocblas(tb), lb, sb},
                     {c, type_of_rocblas(tc), lc, sc}, {d, type_of_rocblas(td), ld, sd}});
}
API int rocblas_gemm_ex(void* handle, int oa, int ob, int m, int n, int k, const void* alpha, const void* a, int ta,
                        int la, const void* b, int tb, int lb, const void* beta, const void* c, int tc, int lc,
                        void* d, int td, int ld, int compute, int algorithm, int solution, unsigned flags)
{
    return rocblas_gemm_strided_batched_ex(handle, oa, ob, m, n, k, alpha, a, ta, la, 0, b, tb, lb, 0, beta, c, tc,
                                           lc, 0, d, td, ld, 0, 1, compute, algorithm, solution, flags);
}
MAKE(rocblas_create_handle)
DROP(rocblas_destroy_handle)
OK(rocblas_set_stream)
OK(rocblas_gemm_ex_get_solutions)
OK(rocblas_gemm_strided_batched_ex_get_solutions)

// ---- hipBLASLt ----------------------------------------------------------------------------------------------------

namespace {
struct layout
{
    std::int64_t type, rows, columns, leading, batch, stride;
};
struct description
{
    int compute, scale, operation_a, operation_b;
};
} // namespace

namespace {
bool has_kernels(const layout* a) { return a->type != hip_int; } // of all types that MIGraphX multiplies
} // namespace

API int hipblasLtMatrixLayoutCreate(layout** out, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t leading)
{
    return *out = new layout{type, std::int64_t(rows), std::int64_t(columns), leading, 1, 0}, 0;
}
API int hipblasLtMatrixLayoutDestroy(layout* l) { return delete l, 0; }
API int hipblasLtMatrixLayoutSetAttribute(layout* l, int attribute, const void* value, std::size_t size)
{
    std::int64_t number = 0;
    std::memcpy(&number, value, std::min(size, sizeof number));
    switch(attribute)
    {
    case 0: return l->batch = number, 0;
    case 1: return l->stride = number, 0;
    default: return unsupported;
    }
}
API int hipblasLtMatmulDescCreate(description** out, int compute, int scale)
{
    return *out = new description{compute, scale, 0, 0}, 0;
}
API int hipblasLtMatmulDescDestroy(description* d) { return delete d, 0; }
API int hipblasLtMatmulDescSetAttribute(description* d, int attribute, const void* value, std::size_t)
{
    switch(attribute)
    {
    case 0: return std::memcpy(&d->operation_a, value, sizeof(int)), 0;
    case 1: return std::memcpy(&d->operation_b, value, sizeof(int)), 0;
    default: return unsupported;
    }
}
API int hipblasLtMatmul(void*, const description* how, const void* alpha, const void* a, const layout* la,
                        const void* b, const layout* lb, const void* beta, const void* c, const layout* lc, void* d,
                        const layout* ld, const void*, void*, std::size_t, void*)
{
    if(not has_kernels(la))
        return unsupported;
    const bool ta = how->operation_a == transposed, tb = how->operation_b == transposed;
    auto of       = [](const void* data, const layout* l) { return matrix{data, l->type, l->leading, l->stride}; };
    return multiply({ta, tb, ld->rows, ld->columns, ta ? la->rows : la->columns, ld->batch,
                     type_of_computation(how->compute), how->scale, alpha, beta,
                     of(a, la), of(b, lb), of(c, lc), of(d, ld)});
}
API int hipblasLtMatmulAlgoGetHeuristic(
    void*, void*, const layout* a, const layout*, void*, void*, void*, int, void*, int* count)
{
    return *count = has_kernels(a), 0;
}
MAKE(hipblasLtCreate)
DROP(hipblasLtDestroy)
MAKE(hipblasLtMatmulPreferenceCreate)
DROP(hipblasLtMatmulPreferenceDestroy)
OK(hipblasLtMatmulPreferenceSetAttribute)
// hipblaslt_ext: getAllAlgos, getAlgosFromIndex, getIndexFromAlgo, matmulIsAlgoSupported
OK(_ZN13hipblaslt_ext11getAllAlgosEPvNS_8GemmTypeE18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_tRSt6vectorI33_hipblasLtMatmulHeuristicResult_tSaIS6_EE)
OK(_ZN13hipblaslt_ext17getAlgosFromIndexEPvRSt6vectorIiSaIiEERS1_I33_hipblasLtMatmulHeuristicResult_tSaIS5_EE)
OK(_ZN13hipblaslt_ext16getIndexFromAlgoER22_hipblasLtMatmulAlgo_t)
OK(_ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrixLayoutOpaque_tS6_S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm)
