// What the crates say of the CUDA driver (declared.h) is what cuda.h says: `cargo xtask ci header` compiles this and runs nothing.

#define __CUDA_API_VERSION_INTERNAL  // every version of every function
#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

using c_char = char;
using c_int = int;
using c_uint = unsigned;
using c_void = void;
using f32 = float;
using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using usize = std::size_t;
template <class T> using mut_ptr = T *;
template <class T> using const_ptr = const T *;
template <class A, class B> struct tuple { A a; B b; };
template <class... T> struct list {};

template <class T, class = void> constexpr bool is_complete = false;
template <class T> constexpr bool is_complete<T, std::void_t<decltype(sizeof(T))>> = true;
template <class T> constexpr bool is_number = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class T> constexpr bool is_bytes = false;
template <std::size_t N> constexpr bool is_bytes<std::array<u8, N>> = true;

// The structure of cuda.h that one of ours stands for.
template <class Ours> struct twin { using type = void; };

template <class Ours, class Theirs> constexpr bool same() {
    if constexpr (is_number<Ours> && is_number<Theirs>) {
        // Rust has numbers of either sign for enumerations.
        return sizeof(Ours) == sizeof(Theirs) && std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs> &&
               (std::is_enum_v<Theirs> || std::is_signed_v<Ours> == std::is_signed_v<Theirs>);
    } else if constexpr (std::is_pointer_v<Theirs>) {
        using To = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
        if constexpr (std::is_class_v<To> && !is_complete<To>) {
            // An opaque handle.
            return std::is_same_v<Ours, void *> || std::is_same_v<Ours, usize>;
        } else if constexpr (std::is_pointer_v<Ours>) {
            using Our = std::remove_cv_t<std::remove_pointer_t<Ours>>;
            return std::is_void_v<Our> ? std::is_void_v<To> || std::is_class_v<To> : same<Our, To>();
        }
        return false;
    } else if constexpr (is_bytes<Ours> && is_complete<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs);
    }
    return std::is_same_v<typename twin<Ours>::type, Theirs>;
}

template <class Ours, class... Theirs> struct arguments { static constexpr bool agree = false; };
template <class... Ours, class... Theirs> struct arguments<list<Ours...>, list<Theirs...>> {
    static constexpr bool agree = [] {
        if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
            return (same<Ours, Theirs>() && ...);
        }
        return false;
    }();
};
template <class Ours, class... Theirs> constexpr bool same_arguments(CUresult (*)(Theirs...)) {
    return arguments<Ours, list<Theirs...>>::agree;
}

namespace cuda {
struct AllocationProperties;
struct AccessDescription;
struct ExternalDescription;
struct ExternalBuffer;
struct LaunchConfig;
struct LaunchAttribute;
struct CopyAttributes;
}
namespace preload {
struct Plane;
struct Space;
struct Attributes;
struct LaunchConfig;
}
template <> struct twin<cuda::AllocationProperties> { using type = CUmemAllocationProp; };
template <> struct twin<cuda::AccessDescription> { using type = CUmemAccessDesc; };
template <> struct twin<cuda::ExternalDescription> { using type = CUDA_EXTERNAL_MEMORY_HANDLE_DESC; };
template <> struct twin<cuda::ExternalBuffer> { using type = CUDA_EXTERNAL_MEMORY_BUFFER_DESC; };
template <> struct twin<cuda::LaunchConfig> { using type = CUlaunchConfig; };
template <> struct twin<cuda::LaunchAttribute> { using type = CUlaunchAttribute; };
template <> struct twin<cuda::CopyAttributes> { using type = CUmemcpyAttributes; };
template <> struct twin<preload::Plane> { using type = CUDA_MEMCPY2D; };
template <> struct twin<preload::Space> { using type = CUDA_MEMCPY3D; };
template <> struct twin<preload::Attributes> { using type = CUmemcpyAttributes; };
template <> struct twin<preload::LaunchConfig> { using type = CUlaunchConfig; };

#include "declared.h"

#define SIZE(ours) static_assert(sizeof(ours) == sizeof(twin<ours>::type), #ours);
#define FIELD(ours, field, theirs) \
    static_assert(offsetof(ours, field) == offsetof(twin<ours>::type, theirs), #ours "." #field);
#define VALUE(ours, theirs) static_assert(ours == (long long)(theirs), #ours);

SIZE(cuda::AllocationProperties)
FIELD(cuda::AllocationProperties, kind, type)
FIELD(cuda::AllocationProperties, handle_kinds, requestedHandleTypes)
FIELD(cuda::AllocationProperties, location.kind, location.type)
FIELD(cuda::AllocationProperties, location.id, location.id)
FIELD(cuda::AllocationProperties, windows_metadata, win32HandleMetaData)
FIELD(cuda::AllocationProperties, flags, allocFlags)
SIZE(cuda::AccessDescription)
FIELD(cuda::AccessDescription, location.kind, location.type)
FIELD(cuda::AccessDescription, location.id, location.id)
FIELD(cuda::AccessDescription, flags, flags)
SIZE(cuda::ExternalDescription)
FIELD(cuda::ExternalDescription, kind, type)
FIELD(cuda::ExternalDescription, handle.fd, handle.fd)
FIELD(cuda::ExternalDescription, size, size)
FIELD(cuda::ExternalDescription, flags, flags)
FIELD(cuda::ExternalDescription, reserved, reserved)
SIZE(cuda::ExternalBuffer)
FIELD(cuda::ExternalBuffer, offset, offset)
FIELD(cuda::ExternalBuffer, size, size)
FIELD(cuda::ExternalBuffer, flags, flags)
FIELD(cuda::ExternalBuffer, reserved, reserved)
SIZE(cuda::LaunchConfig)
FIELD(cuda::LaunchConfig, grid, gridDimX)
FIELD(cuda::LaunchConfig, block, blockDimX)
FIELD(cuda::LaunchConfig, shared_bytes, sharedMemBytes)
FIELD(cuda::LaunchConfig, stream, hStream)
FIELD(cuda::LaunchConfig, attributes, attrs)
FIELD(cuda::LaunchConfig, attribute_count, numAttrs)
SIZE(cuda::LaunchAttribute)
FIELD(cuda::LaunchAttribute, id, id)
FIELD(cuda::LaunchAttribute, value, value.clusterDim)
SIZE(cuda::CopyAttributes)
FIELD(cuda::CopyAttributes, source_order, srcAccessOrder)
FIELD(cuda::CopyAttributes, source_location, srcLocHint)
FIELD(cuda::CopyAttributes, destination_location, dstLocHint)
FIELD(cuda::CopyAttributes, flags, flags)
SIZE(preload::LaunchConfig)
FIELD(preload::LaunchConfig, grid, gridDimX)
FIELD(preload::LaunchConfig, block, blockDimX)
FIELD(preload::LaunchConfig, shared_bytes, sharedMemBytes)
FIELD(preload::LaunchConfig, stream, hStream)
FIELD(preload::LaunchConfig, attributes, attrs)
FIELD(preload::LaunchConfig, attribute_count, numAttrs)
SIZE(preload::Plane)
FIELD(preload::Plane, from.x, srcXInBytes)
FIELD(preload::Plane, from.y, srcY)
FIELD(preload::Plane, from.kind, srcMemoryType)
FIELD(preload::Plane, from.host, srcHost)
FIELD(preload::Plane, from.device, srcDevice)
FIELD(preload::Plane, from.array, srcArray)
FIELD(preload::Plane, from.pitch, srcPitch)
FIELD(preload::Plane, to.x, dstXInBytes)
FIELD(preload::Plane, to.pitch, dstPitch)
FIELD(preload::Plane, width, WidthInBytes)
FIELD(preload::Plane, height, Height)
SIZE(preload::Space)
FIELD(preload::Space, from.x, srcXInBytes)
FIELD(preload::Space, from.y, srcY)
FIELD(preload::Space, from.z, srcZ)
FIELD(preload::Space, from.level, srcLOD)
FIELD(preload::Space, from.kind, srcMemoryType)
FIELD(preload::Space, from.host, srcHost)
FIELD(preload::Space, from.device, srcDevice)
FIELD(preload::Space, from.array, srcArray)
FIELD(preload::Space, from.pitch, srcPitch)
FIELD(preload::Space, from.height, srcHeight)
FIELD(preload::Space, to.x, dstXInBytes)
FIELD(preload::Space, to.height, dstHeight)
FIELD(preload::Space, width, WidthInBytes)
FIELD(preload::Space, height, Height)
FIELD(preload::Space, depth, Depth)
SIZE(preload::Attributes)
FIELD(preload::Attributes, access, srcAccessOrder)
FIELD(preload::Attributes, hints, srcLocHint)
FIELD(preload::Attributes, flags, flags)

VALUE(cuda::SUCCESS, CUDA_SUCCESS)
VALUE(cuda::INVALID_VALUE, CUDA_ERROR_INVALID_VALUE)
VALUE(cuda::OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
VALUE(cuda::STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY)
VALUE(cuda::NO_DEVICE, CUDA_ERROR_NO_DEVICE)
VALUE(cuda::NOT_READY, CUDA_ERROR_NOT_READY)
VALUE(cuda::NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED)
VALUE(cuda::PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
VALUE(cuda::TOO_MANY_PEERS, CUDA_ERROR_TOO_MANY_PEERS)
VALUE(cuda::HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
VALUE(cuda::SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
VALUE(cuda::STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
VALUE(cuda::EVENT_DEFAULT, CU_EVENT_DEFAULT)
VALUE(cuda::EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
VALUE(cuda::HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE)
VALUE(cuda::HOST_ALLOC_DEVICE_MAP, CU_MEMHOSTALLOC_DEVICEMAP)
VALUE(cuda::HOST_ALLOC_WRITE_COMBINED, CU_MEMHOSTALLOC_WRITECOMBINED)
VALUE(cuda::HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE)
VALUE(cuda::HOST_REGISTER_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP)
VALUE(cuda::POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
VALUE(cuda::POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED)
VALUE(cuda::POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
VALUE(cuda::MEMORY_TYPE_HOST, CU_MEMORYTYPE_HOST)
VALUE(cuda::MEMORY_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE)
VALUE(cuda::WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ)
VALUE(cuda::WAIT_EQ, CU_STREAM_WAIT_VALUE_EQ)
VALUE(cuda::STREAM_WRITE_WITHOUT_BARRIER, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
VALUE(cuda::SOURCE_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
VALUE(cuda::CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
VALUE(cuda::FUNCTION_MAX_DYNAMIC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
VALUE(cuda::FUNCTION_NON_PORTABLE_CLUSTERS, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
VALUE(cuda::LAUNCH_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
VALUE(cuda::JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER)
VALUE(cuda::JIT_ERROR_LOG_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
VALUE(cuda::ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
VALUE(cuda::ATTRIBUTE_KERNEL_TIME_LIMIT, CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)
VALUE(cuda::ATTRIBUTE_ASYNC_ENGINES, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)
VALUE(cuda::ATTRIBUTE_REGISTERED_POINTERS, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
VALUE(cuda::ATTRIBUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
VALUE(cuda::ATTRIBUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
VALUE(preload::SUCCESS, CUDA_SUCCESS)
VALUE(preload::NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED)
VALUE(preload::NOT_READY, CUDA_ERROR_NOT_READY)
VALUE(preload::EVENT_WITHOUT_TIME, CU_EVENT_DISABLE_TIMING)
VALUE(preload::PAGEABLE_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
VALUE(preload::RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
VALUE(preload::HOST, CU_MEMORYTYPE_HOST)
VALUE(preload::DEVICE, CU_MEMORYTYPE_DEVICE)
VALUE(preload::IN_STREAM_ORDER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
VALUE(preload::IN_ANY_ORDER, CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
