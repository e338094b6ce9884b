# -DROPED_SANITIZE=address,undefined or =thread: every host target, or none.
if(ROPED_SANITIZE)
  set(flags -fsanitize=${ROPED_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_compile_options($<$<COMPILE_LANGUAGE:C>:${flags}>)
  # lists do not survive COMPILE_LANGUAGE unless joined
  string(REPLACE ";" " " link_flags "${flags}")
  set(CMAKE_EXE_LINKER_FLAGS "${CMAKE_EXE_LINKER_FLAGS} ${link_flags}")
  set(CMAKE_SHARED_LINKER_FLAGS "${CMAKE_SHARED_LINKER_FLAGS} ${link_flags}")
endif()
