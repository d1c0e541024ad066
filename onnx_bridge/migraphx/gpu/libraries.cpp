// MIOpen, rocBLAS and hipBLASLt without their kernels, for compiling alone: every call succeeds, and nothing is chosen.
//
// A convolution that is compiled with this MIOpen holds a solution that says so, and that no MIOpen loads. A matrix
// product holds nothing of these libraries: rocBLAS's solution 0 is chosen when the program runs. Calls that compute
// report failure, unless gpustub_set_product_hook names a function that carries out matrix products.
// One source for the three: each is linked with the symbols of its own that MIGraphX needs.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
#define OK(name) API int name() { return 0; }
#define MAKE(name) API int name(void** out) { return make(out); }
#define DROP(name) API int name(void* object) { return std::free(object), 0; }

namespace {
const int unsupported   = 7;
const char no_miopen[] = "compiled without MIOpen";
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

// ---- rocBLAS ------------------------------------------------------------------------------------------------------

namespace {
// d = alpha · op(a) · op(b) + beta · c, column by column, `batch` times; types and operations as rocBLAS numbers them
struct product
{
    std::int64_t operation_a, operation_b, m, n, k;
    const void* alpha;
    const void* a;
    std::int64_t type_a, leading_a, stride_a;
    const void* b;
    std::int64_t type_b, leading_b, stride_b;
    const void* beta;
    const void* c;
    std::int64_t type_c, leading_c, stride_c;
    void* d;
    std::int64_t type_d, leading_d, stride_d, batch, compute_type;
};
using product_hook      = int (*)(const product*);
product_hook on_product = nullptr;
int multiply(const product& p) { return on_product == nullptr ? unsupported : on_product(&p); }
} // namespace

API void gpustub_set_product_hook(product_hook hook) { on_product = hook; }
API int rocblas_gemm_ex(void*, int oa, int ob, int m, int n, int k, const void* alpha, const void* a, int ta, int la,
                        const void* b, int tb, int lb, const void* beta, const void* c, int tc, int lc, void* d,
                        int td, int ld, int compute, int, int, unsigned)
{
    return multiply({oa, ob, m, n, k, alpha, a, ta, la, 0, b, tb, lb, 0, beta, c, tc, lc, 0, d, td, ld, 0, 1, compute});
}
API int rocblas_gemm_strided_batched_ex(void*, int oa, int ob, int m, int n, int k, const void* alpha, const void* a,
                                        int ta, int la, long sa, const void* b, int tb, int lb, long sb,
                                        const void* beta, const void* c, int tc, int lc, long sc, void* d, int td,
                                        int ld, long sd, int batch, int compute, int, int, unsigned)
{
    return multiply(
        {oa, ob, m, n, k, alpha, a, ta, la, sa, b, tb, lb, sb, beta, c, tc, lc, sc, d, td, ld, sd, batch, compute});
}
MAKE(rocblas_create_handle)
DROP(rocblas_destroy_handle)
OK(rocblas_set_stream)
OK(rocblas_gemm_ex_get_solutions)
OK(rocblas_gemm_strided_batched_ex_get_solutions)

// ---- hipBLASLt ----------------------------------------------------------------------------------------------------

API int hipblasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* count)
{
    return *count = 1, 0;
}
MAKE(hipblasLtCreate)
MAKE(hipblasLtMatmulDescCreate)
MAKE(hipblasLtMatmulPreferenceCreate)
MAKE(hipblasLtMatrixLayoutCreate)
DROP(hipblasLtDestroy)
DROP(hipblasLtMatmulDescDestroy)
DROP(hipblasLtMatmulPreferenceDestroy)
DROP(hipblasLtMatrixLayoutDestroy)
OK(hipblasLtMatmulDescSetAttribute)
OK(hipblasLtMatmulPreferenceSetAttribute)
OK(hipblasLtMatrixLayoutSetAttribute)
// hipblaslt_ext: getAllAlgos, getAlgosFromIndex, getIndexFromAlgo, matmulIsAlgoSupported
OK(_ZN13hipblaslt_ext11getAllAlgosEPvNS_8GemmTypeE18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_tRSt6vectorI33_hipblasLtMatmulHeuristicResult_tSaIS6_EE)
OK(_ZN13hipblaslt_ext17getAlgosFromIndexEPvRSt6vectorIiSaIiEERS1_I33_hipblasLtMatmulHeuristicResult_tSaIS5_EE)
OK(_ZN13hipblaslt_ext16getIndexFromAlgoER22_hipblasLtMatmulAlgo_t)
OK(_ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrixLayoutOpaque_tS6_S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm)
