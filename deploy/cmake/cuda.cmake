# Finds a CUDA compiler (PATH, CUDACXX, /usr/local/cuda) and sets
# ROPED_HAS_CUDA. Without one the build goes on, CPU only, and says so.
set(ROPED_HAS_CUDA OFF)
if(ROPED_CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(ROPED_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
    if(ROPED_NVCC)
      set(CMAKE_CUDA_COMPILER ${ROPED_NVCC})
    endif()
  endif()
  # before enable_language, which would guess. -real: machine code only; the
  # last one has no suffix and adds the PTX for chips to come.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 100-real 120)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
      list(INSERT CMAKE_CUDA_ARCHITECTURES 2 87-real) # Orin
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CUDAToolkit_VERSION VERSION_LESS 12.4)
      message(FATAL_ERROR "CUDA ${CUDAToolkit_VERSION} found, 12.4 or newer "
        "needed; -DROPED_CUDA=OFF builds the CPU backend alone")
    endif()
    set(ROPED_HAS_CUDA ON)
  else()
    message(STATUS "no CUDA compiler found: building the CPU backend alone")
  endif()
endif()
