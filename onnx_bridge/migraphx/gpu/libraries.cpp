// MIOpen, rocBLAS and hipBLASLt without their kernels, for compiling alone: every call succeeds, and nothing is chosen.
//
// A convolution that is compiled with this MIOpen holds a solution that says so, and that no MIOpen loads. A matrix
// product holds nothing of these libraries: rocBLAS's solution 0 is chosen when the program runs. Calls that compute
// report failure, unless gpustub_set_product_hook names a function that carries out matrix products.
// One source for the three: each is linked with the symbols of its own that MIGraphX needs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
#define OK(name) API int name() { return 0; }
#define MAKE(name) API int name(void** out) { return make(out); }
#define DROP(name) API int name(void* object) { return std::free(object), 0; }

namespace {
const int unsupported   = 7;
const char no_miopen[] = NO_MIOPEN;
int make(void** out) { return *out = std::calloc(1, 64), *out == nullptr; }
} // namespace

// ---- MIOpen -------------------------------------------------------------------------------------------------------

API int miopenCreate(void** out) { return make(out); }
API int miopenCreateWithStream(void** out, void*) { return make(out); }
API int miopenCreateOpConvForward(void*, void** out, void*, void*) { return make(out); }
API int miopenCreateOpBiasForward(void*, void** out, void*) { return make(out); }
API int miopenCreateOpActivationForward(void*, void** out, int) { return make(out); }
API int miopenCompileFusionPlan(void*, void*) { return unsupported; } // MIGraphX then keeps the parts apart
API int miopenConvolutionForwardGetWorkSpaceSize(void*, void*, void*, void*, void*, std::size_t* n)
{
    return *n = 0, 0;
}
API int miopenFindSolutions(void*, void*, void*, void** solutions, std::size_t* n, std::size_t)
{
    return *n = 1, make(solutions);
}
API int miopenGetSolutionWorkspaceSize(void*, std::size_t* n) { return *n = 0, 0; }
API int miopenGetSolutionSize(void*, std::size_t* n) { return *n = sizeof no_miopen, 0; }
API int miopenSaveSolution(void*, char* to) { return std::memcpy(to, no_miopen, sizeof no_miopen), 0; }
API int miopenLoadSolution(void** solution, const char*, std::size_t) { return make(solution); }
MAKE(miopenCreateTensorDescriptor)
MAKE(miopenCreateConvolutionDescriptor)
MAKE(miopenCreatePoolingDescriptor)
MAKE(miopenCreateActivationDescriptor)
MAKE(miopenCreateLRNDescriptor)
MAKE(miopenCreateOperatorArgs)
MAKE(miopenCreateFusionPlan)
MAKE(miopenCreateFindOptions)
MAKE(miopenCreateConvProblem)
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
OK(miopenInitConvolutionNdDescriptor)
OK(miopenSetActivationDescriptor)
OK(miopenSetConvolutionGroupCount)
OK(miopenSetFindOptionPreallocatedTensor)
OK(miopenSetFindOptionPreallocatedWorkspace)
OK(miopenSetFindOptionTuning)
OK(miopenSetLRNDescriptor)
OK(miopenSetNdPoolingDescriptor)
OK(miopenSetOpArgsActivForward)
OK(miopenSetOpArgsBiasForward)
OK(miopenSetOpArgsConvForward)
OK(miopenSetProblemTensorDescriptor)
OK(miopenSetTensorDescriptor)

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
