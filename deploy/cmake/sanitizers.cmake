# -DROPED_SANITIZE=address,undefined or =thread: every host target, or none.
if(ROPED_SANITIZE)
  if(ROPED_CUDA)
    message(FATAL_ERROR "sanitizers run on the CPU backend: -DROPED_CUDA=OFF")
  endif()
  set(flags -fsanitize=${ROPED_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_compile_options(${flags})
  add_link_options(${flags})
endif()
